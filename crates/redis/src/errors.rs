//! Error replies, in the words that Redis 7.0 uses: clients and tests match on them.

use std::borrow::Cow;

/// Why a command failed: what the client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(Cow<'static, [u8]>);

/// What every handler returns. On `Err` the reply is the error alone, so a handler must not have written
/// anything yet.
pub type CommandResult = Result<(), Failure>;

impl Failure {
    /// An error reply with this text; the first word is its code.
    pub fn new(text: impl Into<Cow<'static, str>>) -> Self {
        match text.into() {
            Cow::Borrowed(text) => Self(Cow::Borrowed(text.as_bytes())),
            Cow::Owned(text) => Self(Cow::Owned(text.into_bytes())),
        }
    }

    /// An error reply that repeats what the client sent, byte for byte, between `before` and `after`.
    pub fn quoting(before: &str, given: &[u8], after: &str) -> Self {
        Self(Cow::Owned([before.as_bytes(), given, after.as_bytes()].concat()))
    }

    /// What follows the `-` of the reply.
    pub fn text(&self) -> &[u8] {
        &self.0
    }

    /// The same for people.
    pub fn lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl From<&'static str> for Failure {
    fn from(text: &'static str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

/// The key holds another type.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
/// What MONITOR's client hears of commands that read or write keys.
pub const MONITOR: &str = "ERR Replica can't interact with the keyspace";
/// Options that do not parse.
pub const SYNTAX: &str = "ERR syntax error";
/// Not a 64-bit signed integer, or out of the range the command allows.
pub const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
/// Not a float.
pub const NOT_FLOAT: &str = "ERR value is not a valid float";
/// A count or similar that must not be negative.
pub const NOT_POSITIVE: &str = "ERR value is out of range, must be positive";
/// A numeric argument outside its range.
pub const OUT_OF_RANGE: &str = "ERR value is out of range";
/// A number of a database that is none of 32 bits.
pub const OUT_OF_INT32: &str = "ERR value is out of range, value must between -2147483648 and 2147483647";
/// The one number that has no opposite, where a count may be negative.
pub const OUT_OF_SYMMETRIC_RANGE: &str =
    "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
/// An index outside the list.
pub const INDEX_OUT_OF_RANGE: &str = "ERR index out of range";
/// The key that must exist does not.
pub const NO_SUCH_KEY: &str = "ERR no such key";
/// FLUSHDB and FLUSHALL when each database was emptied millions of times: see `Spaces`.
pub const NO_SPACES: &str = "ERR databases on these drives were emptied too many times: delete the keys, or copy what is to stay to new drives";
/// INCR and relatives past 64 bits.
pub const OVERFLOW: &str = "ERR increment or decrement would overflow";
/// INCRBYFLOAT past what a float holds.
pub const NAN_OR_INFINITY: &str = "ERR increment would produce NaN or Infinity";
/// APPEND and SETRANGE past the longest value.
pub const STRING_TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
/// SETRANGE with a negative offset.
pub const OFFSET_OUT_OF_RANGE: &str = "ERR offset is out of range";
/// A SCAN cursor that is no number.
pub const INVALID_CURSOR: &str = "ERR invalid cursor";
/// Commands that need data while there is none yet.
pub const LOADING: &str = "LOADING Pumice is opening its drives";
/// Commands before AUTH.
pub const NO_AUTH: &str = "NOAUTH Authentication required.";
/// DEBUG from whom it is not for.
pub const NO_DEBUG: &str = "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it \
                            from a local connection, otherwise you need to set this option in the configuration file, and then \
                            restart the server.";
/// A wrong password.
pub const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
/// EXEC after a queueing error.
pub const EXEC_ABORT: &str = "EXECABORT Transaction discarded because of previous errors.";
/// A hash value that must be an integer is none.
pub const HASH_NOT_INTEGER: &str = "ERR hash value is not an integer";
/// A hash value that must be a float is none.
pub const HASH_NOT_FLOAT: &str = "ERR hash value is not a float";
/// A score that must be a float is none.
pub const MIN_MAX_NOT_FLOAT: &str = "ERR min or max is not a float";
/// A lexical bound that does not parse.
pub const MIN_MAX_NOT_STRING: &str = "ERR min or max not valid string range item";
/// A numkeys argument below 1.
pub const NUMKEYS: &str = "ERR numkeys should be greater than 0";
/// A score that left the numbers.
pub const SCORE_NAN: &str = "ERR resulting score is not a number (NaN)";

/// `ERR wrong number of arguments for 'name' command` (`container|sub` for subcommands).
pub fn wrong_arity(name: &str) -> Failure {
    Failure::new(format!("ERR wrong number of arguments for '{}' command", name.to_ascii_lowercase()))
}

/// What C prints of `bytes` with `%.{max}s`.
fn cut(bytes: &[u8], max: usize) -> &[u8] {
    let bytes = &bytes[..bytes.len().min(max)];
    bytes.split(|&b| b == 0).next().unwrap_or_default()
}

/// Redis's answer to a command that it does not know: the name and the beginning of the arguments.
pub fn unknown_command<'a>(name: &[u8], arguments: impl Iterator<Item = &'a [u8]>) -> Failure {
    // server.c, processCommand: arguments are listed until 128 bytes are full, each cut to what is left.
    let mut list = Vec::new();
    for argument in arguments {
        if list.len() >= 128 {
            break;
        }
        list.push(b'\'');
        let room = 128 - (list.len() - 1);
        list.extend_from_slice(cut(argument, room));
        list.extend_from_slice(b"' ");
    }
    let named = Failure::quoting("ERR unknown command '", cut(name, 128), "', with args beginning with: ");
    Failure(Cow::Owned([named.text(), &list].concat()))
}

/// `ERR unknown subcommand 'x'. Try NAME HELP.`
pub fn unknown_subcommand(container: &str, sub: &[u8]) -> Failure {
    let after = format!("'. Try {} HELP.", container.to_ascii_uppercase());
    Failure::quoting("ERR unknown subcommand '", cut(sub, 128), &after)
}

/// `ERR unknown subcommand or wrong number of arguments for 'x'. Try NAME HELP.`: what a subcommand answers to arguments that its
/// arity lets pass.
pub fn wrong_subcommand(container: &str, sub: &[u8]) -> Failure {
    let after = format!("'. Try {} HELP.", container.to_ascii_uppercase());
    Failure::quoting("ERR unknown subcommand or wrong number of arguments for '", cut(sub, 128), &after)
}

/// `ERR invalid expire time in 'name' command`.
pub fn invalid_expire(name: &str) -> Failure {
    Failure::new(format!("ERR invalid expire time in '{name}' command"))
}
