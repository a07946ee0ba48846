//! Facts of Pumice's own commands.

use crate::command::Facts;

/// One row a command.
pub static FACTS: &[Facts] = &[Facts {
    name: "pumice.range",
    arity: -1,
    flags: &["readonly"],
    first_key: 0,
    last_key: 0,
    key_step: 0,
    categories: &["@keyspace", "@read", "@slow"],
    tips: &["request_policy:all_shards"],
    key_specs: &[],
    group: "generic",
    since: "0.1.0",
    subcommands: &[],
}];
