//! COMMAND DOCS against a real redis-server: redis-cli makes its hints and its help of it.

use crate::common::oracle::Oracle;
use crate::common::{Client, Reply, TestServer};

/// The fields of a documented command or argument that do not have to agree: the history of its options.
const LEFT_OUT: &[&str] = &["history"];

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(text) => String::from_utf8(text.clone()).expect("text"),
        Reply::Simple(text) => text.clone(),
        other => panic!("not text: {other}"),
    }
}

/// Without what is left out, and subcommands that this server does not have (`ours`).
fn normal(docs: &Reply, ours: &Reply) -> Reply {
    let (Reply::Map(fields), Reply::Map(own)) = (docs, ours) else { return docs.clone() };
    let fields = fields.iter().filter(|(name, _)| !LEFT_OUT.contains(&text(name).as_str()));
    let fields = fields.map(|(name, value)| {
        let value = match (text(name).as_str(), value) {
            ("subcommands", Reply::Map(subs)) => {
                let own = own.iter().find(|(field, _)| field == name).map(|(_, subs)| subs);
                let Some(Reply::Map(own)) = own else { panic!("no subcommands in {ours}") };
                let mut kept: Vec<(Reply, Reply)> = Vec::new();
                for (sub, docs) in own {
                    let theirs = subs.iter().find(|(theirs, _)| theirs == sub).expect("Redis has it");
                    kept.push((sub.clone(), normal(&theirs.1, docs)));
                }
                Reply::Map(kept)
            }
            _ => value.clone(),
        };
        (name.clone(), value)
    });
    Reply::Map(fields.collect())
}

fn docs_of(client: &mut Client, name: &str) -> Option<Reply> {
    match client.call(&["COMMAND", "DOCS", name]) {
        Reply::Map(mut found) if found.len() == 1 => Some(found.remove(0).1),
        _ => None,
    }
}

#[test]
fn every_command_is_documented_as_redis_documents_it() {
    let Some(oracle) = Oracle::start() else { return };
    let server = TestServer::start();
    let (mut ours, mut theirs) = (server.client(), oracle.client());
    ours.line("HELLO 3");
    theirs.line("HELLO 3");
    let Reply::Array(names) = ours.line("COMMAND LIST") else { panic!("no list") };
    let mut compared = 0;
    for name in names.iter().map(text) {
        let own = docs_of(&mut ours, &name).unwrap_or_else(|| panic!("{name} is not documented"));
        let Some(expected) = docs_of(&mut theirs, &name) else {
            assert!(name.starts_with("pumice."), "Redis does not know {name}");
            assert!(own.to_string().contains("summary") && own.to_string().contains("arguments"), "{own}");
            continue;
        };
        assert_eq!(own.to_string(), normal(&expected, &own).to_string(), "{name}");
        compared += 1;
    }
    assert!(compared > 100, "{compared} commands");
    let Reply::Map(all) = ours.line("COMMAND DOCS") else { panic!("no map") };
    // Subcommands are told within their commands.
    assert_eq!(all.len(), names.iter().filter(|name| !text(name).contains('|')).count());
}
