//! What administrators and client libraries ask, beside a real redis-server: tables of lines that both answer alike.

use crate::collections::with_pair;

fn check(table: &str) {
    with_pair(&["2", "3"], |pair| pair.table(table));
}

#[test]
fn a_shutdown_that_contradicts_itself_is_refused() {
    check(
        r#"
        SHUTDOWN SAVE NOSAVE
        SHUTDOWN nosave now save
        SHUTDOWN ABORT SAVE
        SHUTDOWN ABORT NOSAVE
        SHUTDOWN NOW ABORT
        SHUTDOWN ABORT FORCE
        SHUTDOWN ABORT ABORT
        SHUTDOWN ABORT
        SHUTDOWN SAVE x
        "#,
    );
}

#[test]
fn an_exec_that_may_not_run_discards_its_transaction_and_says_why() {
    check(
        r#"
        EXEC x
        SET a 1
        WATCH a
        MULTI
        SET a 2
        EXEC x y
        EXEC
        DISCARD
        GET a
        MULTI
        NOSUCH
        EXEC x
        EXEC
        WATCH a
        SET a 3
        EXEC x
        MULTI
        GET a
        EXEC
        CONFIG SET requirepass secret
        RESET
        EXEC
        EXEC x
        GET a
        AUTH secret
        MULTI
        EXEC
        "#,
    );
}

#[test]
fn parameters_are_set_and_told_as_redis_does() {
    check(
        r#"
        CONFIG SET hz abc nope 5
        CONFIG SET hz 5 nope
        CONFIG SET hz
        CONFIG SET HZ abc
        CONFIG SET NOPE abc
        CONFIG SET "nope\xff" abc
        CONFIG SET daemonize yes hz abc
        CONFIG SET hz abc Daemonize yes
        CONFIG SET hz abc Daemonize yes nope 1
        CONFIG SET hz abc HZ 5
        CONFIG SET hz 1000
        CONFIG GET hz
        CONFIG SET hz 0
        CONFIG GET HZ
        CONFIG SET hz -1
        CONFIG SET hz 100
        CONFIG GET hz
        ~~CONFIG GET hz HZ Timeout timeout
        ~~CONFIG GET hash-max-* HASH-max-listpack-value
        CONFIG SET list-max-ziplist-size 5 list-max-listpack-size 6
        ~~CONFIG GET list-max-*
        CONFIG SET list-max-ziplist-size 7
        ~~CONFIG GET list-max-*
        CONFIG SET LIST-max-ziplist-size x
        CONFIG SET min-slaves-to-write 1
        ~~CONFIG GET min-*-to-write
        CONFIG SET min-slaves-to-write 0
        ~~CONFIG GET activerehashing lfu-log-factor active-expire-effort replica-read-only slave-read-only
        ~~CONFIG GET repl-backlog-size busy-reply-threshold lua-time-limit oom-score-adj latency-tracking
        CONFIG SET activerehashing no lfu-log-factor 3 active-expire-effort 10 slave-read-only no latency-tracking no
        ~~CONFIG GET activerehashing lfu-log-factor active-expire-effort replica-read-only latency-tracking
        CONFIG SET lfu-log-factor -1
        CONFIG SET active-expire-effort 11
        CONFIG SET repl-backlog-size 0
        CONFIG SET repl-backlog-size 1kb
        CONFIG GET repl-backlog-size
        CONFIG SET repl-backlog-size 1m
        CONFIG GET repl-backlog-size
        CONFIG SET busy-reply-threshold -1
        CONFIG SET lua-time-limit 77
        ~~CONFIG GET busy-reply-threshold lua-time-limit
        CONFIG SET oom-score-adj maybe
        CONFIG SET oom-score-adj relative
        CONFIG GET oom-score-adj
        CONFIG SET oom-score-adj no
        CONFIG SET client-output-buffer-limit "slave 1mb 1k 5 pubsub 3 4 5"
        CONFIG GET client-output-buffer-limit
        CONFIG SET client-output-buffer-limit "replica 2mb 1K 5"
        CONFIG GET client-output-buffer-limit
        CONFIG SET client-output-buffer-limit "pubsub 2mb 1k -5"
        CONFIG SET client-output-buffer-limit "pubsub 2mb 1x 5"
        CONFIG SET client-output-buffer-limit "master 2mb 1 5"
        CONFIG SET client-output-buffer-limit "pubsub 2mb 1 5 pubsub 1 2 3"
        CONFIG GET client-output-buffer-limit
        CONFIG GET nosuch
        "#,
    );
}

#[test]
fn bytes_of_memory_have_the_units_that_redis_gives_them() {
    let mut table = String::new();
    for value in [
        "1b", "10B", "1k", "1K", "1kb", "1KB", "3m", "3Mb", "1g", "1GB", "010", "kb", "\"\"", "1kib", "1t",
        "1tb", "-1", "+1", "1.5", "\" 1\"", "\"1 \"", "\"1 kb\"", "0x10", "1kbb", "k1",
    ] {
        for name in ["hash-max-listpack-value", "client-query-buffer-limit", "maxmemory-clients"] {
            table.push_str(&format!("CONFIG SET {name} {value}\nCONFIG GET {name}\n"));
        }
    }
    table.push_str("CONFIG SET maxmemory-clients 101%\nCONFIG SET maxmemory-clients 5%\nCONFIG SET maxmemory-clients x%\n");
    check(&table);
    crate::common::check(
        r#"
        > CONFIG SET maxmemory 1x
        (error) ERR CONFIG SET failed (possibly related to argument 'maxmemory') - argument must be a memory value
        > CONFIG SET maxmemory "256 mb"
        (error) ERR CONFIG SET failed (possibly related to argument 'maxmemory') - argument must be a memory value
        > CONFIG SET maxmemory 262144KB
        OK
        "#,
    );
}

#[test]
fn errors_repeat_what_was_sent_byte_for_byte() {
    check(
        r#"
        "nosuch\xff\xfe" "x\xe9"
        OBJECT "nosuch\xff"
        HELLO 3 "nosuch\xff"
        CLIENT LIST TYPE "nosuch\xff"
        CLIENT KILL USER "nosuch\xff"
        DEBUG "nosuch\xff"
        DEBUG ERROR "\xff text"
        EXPIRE a 1 "\xff"
        "#,
    );
}
