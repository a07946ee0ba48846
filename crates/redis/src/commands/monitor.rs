//! MONITOR: every command that the server runs, as it runs.

use crate::args::Args;
use crate::command::Row;
use crate::context::Ctx;
use crate::errors::CommandResult;
use crate::handler;

/// The commands of this module.
pub static ROWS: &[Row] = &[("monitor", handler!(monitor))];

async fn monitor(ctx: &mut Ctx, _args: Args<'_>) -> CommandResult {
    if ctx.in_exec() {
        return Err("ERR MONITOR isn't allowed for DENY BLOCKING client".into());
    }
    ctx.session.is_monitor = true;
    ctx.server.clients.set_monitor(&ctx.session.client, true);
    ctx.reply.ok();
    Ok(())
}

/// Tells monitors of a command that is about to run.
pub fn tell(ctx: &Ctx, args: &Args<'_>) {
    use std::io::Write;
    let mut line = Vec::with_capacity(64 + args.bytes());
    let micros = pumice_reactor::wall_us();
    let client = &ctx.session.client;
    let (database, addr) = (ctx.session.database, &client.addr);
    let _ = write!(line, "+{}.{:06} [{database} {addr}]", micros / 1_000_000, micros % 1_000_000);
    for argument in args.shown() {
        line.push(b' ');
        quote(&mut line, argument);
    }
    line.extend_from_slice(b"\r\n");
    ctx.server.clients.monitor(&line);
}

/// sds.c, sdscatrepr.
pub(super) fn quote(out: &mut Vec<u8>, bytes: &[u8]) {
    use std::io::Write;
    out.push(b'"');
    for &byte in bytes {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x07 => out.extend_from_slice(b"\\a"),
            0x08 => out.extend_from_slice(b"\\b"),
            b' '..=b'~' => out.push(byte),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push(b'"');
}
