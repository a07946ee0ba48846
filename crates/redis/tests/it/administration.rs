//! What administrators and client libraries ask, beside a real redis-server: tables of lines that both answer alike.

use crate::collections::with_pair;
use crate::common::{Client, Reply};
use crate::differential::look_ups;

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
    with_pair(&["2"], |pair| {
        for client in [&mut pair.ours, &mut pair.theirs] {
            client.send(b"*1\r\n\xff5\r\n");
        }
        let (ours, theirs) = (pair.ours.read_to_end(), pair.theirs.read_to_end());
        assert_eq!(ours.escape_ascii().to_string(), theirs.escape_ascii().to_string());
    });
}

/// Each line by itself: keys that are there, that are not, and of another type.
#[test]
fn look_ups_are_counted_where_redis_counts_them() {
    let reads = [
        "GET K",
        "MGET K none K",
        "GETRANGE K 0 1",
        "STRLEN K",
        "GETSET s v",
        "SET s v GET",
        "SET none v XX GET",
        "GETEX K",
        "GETEX K EX x",
        "SUBSTR K 0 1",
        "HGET K f",
        "HMGET K f g",
        "HGETALL K",
        "HKEYS K",
        "HVALS K",
        "HEXISTS K f",
        "HLEN K",
        "HSTRLEN K f",
        "HRANDFIELD K",
        "HRANDFIELD K 2",
        "HRANDFIELD K x",
        "HSCAN K 0",
        "SISMEMBER K m",
        "SMISMEMBER K m n",
        "SMEMBERS K",
        "SCARD K",
        "SRANDMEMBER K",
        "SRANDMEMBER K 2",
        "SSCAN K 0",
        "SINTER K set",
        "SUNION K none K",
        "SDIFF set K",
        "SINTERCARD 2 set K",
        "SINTERSTORE to set K",
        "SUNIONSTORE to K",
        "SDIFFSTORE to K set",
        "ZSCORE K m",
        "ZMSCORE K m n",
        "ZCARD K",
        "ZCOUNT K 0 1",
        "ZLEXCOUNT K - +",
        "ZRANGE K 0 -1",
        "ZRANGE K x 1",
        "ZREVRANGE K 0 -1",
        "ZRANGEBYSCORE K 0 1",
        "ZRANGEBYLEX K - +",
        "ZRANGESTORE to K 0 -1",
        "ZRANK K m",
        "ZREVRANK K m",
        "ZRANDMEMBER K",
        "ZRANDMEMBER K 2",
        "ZSCAN K 0",
        "ZUNION 2 zset K",
        "ZINTER 2 K zset",
        "ZDIFF 2 K zset",
        "ZINTERCARD 2 K zset",
        "ZUNIONSTORE to 2 K zset",
        "ZINTERSTORE to 2 zset K",
        "ZDIFFSTORE to 2 zset K",
        "LLEN K",
        "LINDEX K 0",
        "LINDEX K x",
        "LRANGE K 0 -1",
        "LPOS K a",
        "LPOS K none COUNT 0",
        "EXISTS K none K",
        "TYPE K",
        "TOUCH K none",
        "TTL K",
        "PTTL K",
        "EXPIRETIME K",
        "PEXPIRETIME K",
        "OBJECT ENCODING K",
        "OBJECT REFCOUNT K",
        "OBJECT FREQ K",
        "MEMORY USAGE K",
        "COPY K to REPLACE",
        "COPY K list",
        "KEYS *",
        "RANDOMKEY",
        "DBSIZE",
        "SCAN 0 COUNT 100",
        "SCAN 0 COUNT 100 TYPE hash",
        "SCAN 0 COUNT 100 MATCH s* TYPE set",
    ];
    let writes = [
        "SET to v",
        "SETNX K v",
        "APPEND K v",
        "SETRANGE K 0 v",
        "INCR K",
        "INCRBYFLOAT K 1",
        "MSET to 1 s 2",
        "MSETNX K 1",
        "HSET K f v",
        "HSETNX K f v",
        "HINCRBY K n 1",
        "HDEL K none",
        "SADD K m",
        "SREM K none",
        "SMOVE K set none",
        "SPOP K 0",
        "SPOP K 1",
        "SPOP K 9",
        "ZADD K 1 m",
        "ZINCRBY K 1 m",
        "ZREM K none",
        "ZPOPMIN K 0",
        "ZMPOP 1 none MIN",
        "ZREMRANGEBYRANK K 9 9",
        "LPUSHX K a",
        "LPOP K 0",
        "RPOPLPUSH none K",
        "LMOVE none K LEFT LEFT",
        "LMPOP 1 none LEFT",
        "LINSERT K BEFORE none x",
        "LSET K 0 a",
        "LREM K 0 none",
        "LTRIM K 0 -1",
        "EXPIRE K 1000",
        "PERSIST K",
        "RENAMENX K list",
        "DEL none",
        "UNLINK none",
        "WATCH K",
        "UNWATCH",
        "GETDEL to",
    ];
    with_pair(&["2"], |pair| {
        pair.table("SET s v\nHSET hash f v g w\nSADD set m n\nZADD zset 1 m 2 n\nRPUSH list a b c");
        for line in reads.iter().chain(&writes) {
            for key in ["s", "hash", "set", "zset", "list", "none"] {
                let words: Vec<&str> =
                    line.split(' ').map(|word| if word == "K" { key } else { word }).collect();
                let line = words.join(" ");
                let before = (look_ups(&mut pair.ours), look_ups(&mut pair.theirs));
                // Replies are compared elsewhere; some of these are drawn.
                pair.ours.line(&line);
                pair.theirs.line(&line);
                let after = (look_ups(&mut pair.ours), look_ups(&mut pair.theirs));
                let rise = |before: [u64; 2], after: [u64; 2]| [after[0] - before[0], after[1] - before[1]];
                assert_eq!(rise(before.0, after.0), rise(before.1, after.1), "{line}: hits and misses");
            }
        }
    });
}

#[test]
fn commands_are_listed_and_their_keys_told() {
    check(
        r#"
        COMMAND LIST FILTERBY PATTERN GET
        ~COMMAND LIST FILTERBY PATTERN "S[E]TN*"
        ~COMMAND LIST FILTERBY ACLCAT TRANSACTION
        COMMAND LIST FILTERBY ACLCAT nosuch
        COMMAND INFO echo quit
        COMMAND GETKEYS OBJECT nosuch x
        COMMAND GETKEYS OBJECT
        COMMAND GETKEYS CONFIG nosuch
        COMMAND GETKEYS nosuch x
        COMMAND GETKEYS OBJECT encoding
        COMMAND GETKEYS OBJECT encoding k
        COMMAND GETKEYS MEMORY usage k
        COMMAND GETKEYS MEMORY doctor
        COMMAND GETKEYS CLIENT ID
        COMMAND GETKEYS GET
        "#,
    );
}

#[test]
fn numbers_and_places_that_do_not_fit_are_refused() {
    check(
        r#"
        SELECT 99999999999
        SELECT 2147483648
        SELECT -2147483649
        SELECT 2147483647
        SELECT -1
        SELECT x
        SET a 1
        COPY a b DB 99999999999
        COPY a b DB -2147483649
        COPY a b DB 16
        COPY a b DB x
        SLOWLOG GET 1 2
        SLOWLOG get 1 2
        SLOWLOG GET x
        SLOWLOG LEN x
        MULTI
        MONITOR
        SELECT 99999999999
        PING
        EXEC
        PING
        CONFIG SET requirepass secret
        RESET
        HELLO 3
        HELLO
        HELLO 2 AUTH default wrong
        AUTH secret
        CLIENT KILL ID -1
        CLIENT LIST ID x
        CLIENT LIST ID
        CLIENT LIST ID 0
        "#,
    );
}

fn text(reply: Reply) -> String {
    match reply {
        Reply::Bulk(bytes) | Reply::Verbatim(bytes) => String::from_utf8(bytes).expect("text"),
        other => panic!("not text: {other}"),
    }
}

/// Flags and last command of `other`, as `client` sees them. Redis marks clients of Unix sockets.
fn told(client: &mut Client, id: &Reply) -> String {
    let line = text(client.line(&format!("CLIENT LIST ID {id}")));
    let field =
        |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)).expect("a field").trim_end();
    let flags = field("flags=").replace('U', "");
    format!("{} {}", if flags.is_empty() { "N" } else { &flags }, field("cmd="))
}

#[test]
fn clients_tell_their_last_command_and_whether_their_watch_was_broken() {
    with_pair(&["2"], |pair| {
        let (mut ours, mut theirs) = (pair.our_other(), pair.their_other());
        let ids = (ours.line("CLIENT ID"), theirs.line("CLIENT ID"));
        for line in [
            "GET a",
            "GET",
            "NOSUCH",
            "CONFIG NOSUCH",
            "CONFIG GET",
            "OBJECT",
            "GET a",
            "WATCH a",
            "PING",
            "! SET a 1",
            "MULTI",
            "GET a",
            "INCR a b",
            "CLIENT LIST x",
            "EXEC",
            "WATCH a",
            "! SET b 1",
            "! DEL a",
            "UNWATCH",
            "WATCH a",
            "! SET a 2",
            "MULTI",
            "SET a 3",
            "EXEC",
            "CLIENT NO-EVICT on",
            "WATCH a",
            "! SET a 1",
            "RESET",
            "MULTI",
            "GET a",
            "CLIENT GETNAME",
            "EXEC",
        ] {
            match line.strip_prefix("! ") {
                Some(line) => drop((pair.ours.line(line), pair.theirs.line(line))),
                None => drop((ours.line(line), theirs.line(line))),
            }
            assert_eq!(told(&mut pair.ours, &ids.0), told(&mut pair.theirs, &ids.1), "after {line}");
        }
    });
}

#[test]
fn an_idle_server_tells_what_an_idle_redis_tells() {
    // What dashboards read, and what does not depend on the machine or the program.
    let fields = "lazyfreed_objects lazyfree_pending_objects mem_clients_slaves mem_replication_backlog mem_cluster_links \
        mem_aof_buffer mem_total_replication_buffers mem_not_counted_for_evict active_defrag_running number_of_cached_scripts \
        total_system_memory maxmemory_policy rdb_last_bgsave_time_sec rdb_current_bgsave_time_sec rdb_last_cow_size \
        current_cow_size current_fork_perc current_save_keys_total aof_rewrite_scheduled aof_last_rewrite_time_sec \
        aof_current_rewrite_time_sec aof_last_cow_size module_fork_in_progress latest_fork_usec total_forks sync_partial_ok \
        sync_partial_err evicted_clients total_net_repl_input_bytes total_net_repl_output_bytes instantaneous_input_repl_kbps \
        pubsubshard_channels migrate_cached_sockets slave_expires_tracked_keys active_defrag_hits tracking_total_keys \
        unexpected_error_replies dump_payload_sanitizations current_eviction_exceeded_time master_replid2 second_repl_offset \
        repl_backlog_active repl_backlog_size repl_backlog_first_byte_offset repl_backlog_histlen clients_in_timeout_table hz \
        configured_hz process_supervised io_threads_active";
    with_pair(&["2"], |pair| {
        pair.check("CONFIG SET hz 1000 repl-backlog-size 2mb maxmemory-policy allkeys-lru");
        let (ours, theirs) =
            (text(pair.ours.line("INFO everything")), text(pair.theirs.line("INFO everything")));
        let value = |info: &str, name: &str| {
            let line =
                info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_string));
            line.unwrap_or_else(|| panic!("no {name} in {info}"))
        };
        for name in fields.split_whitespace() {
            assert_eq!(value(&ours, name), value(&theirs, name), "{name}");
        }
        assert!(value(&ours, "used_memory_peak_perc").ends_with('%'));
        for name in ["used_memory", "used_memory_rss", "used_memory_peak", "total_system_memory", "maxmemory"]
        {
            let bytes: f64 = value(&ours, name).parse().expect("a number");
            let human = value(&ours, &format!("{name}_human"));
            let theirs = value(&theirs, &format!("{name}_human"));
            let (number, unit) = human.split_at(human.len() - 1);
            let shift = "BKMGT".find(unit).unwrap_or_else(|| panic!("{name}: {human}, {theirs}"));
            assert_eq!(number, format!("{:.2}", bytes / 1024f64.powi(shift as i32)), "{name}: {theirs}");
        }
    });
}
