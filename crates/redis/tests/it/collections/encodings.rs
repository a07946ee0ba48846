//! What Redis tells of how it keeps a value: OBJECT, the limits of its compact encodings, DEBUG DIGEST.

use super::{Pair, with_pair};

fn check(table: &str) {
    with_pair(&["2", "3"], |pair| {
        pair.table(table);
        pair.check_contents();
    });
}

#[test]
fn a_string_is_told_as_the_command_that_made_it_leaves_it() {
    check(
        r#"
        SET n 12
        OBJECT ENCODING n
        INCRBYFLOAT n 1
        GET n
        OBJECT ENCODING n
        INCR n
        OBJECT ENCODING n
        APPEND n ""
        OBJECT ENCODING n
        COPY n copied
        OBJECT ENCODING copied
        RENAME copied renamed
        OBJECT ENCODING renamed
        EXPIRE renamed 1000
        OBJECT ENCODING renamed
        GETEX renamed PERSIST
        OBJECT ENCODING renamed
        TYPE renamed
        SCAN 0 TYPE string MATCH renamed COUNT 1000
        STRLEN renamed
        GETSET renamed 5
        OBJECT ENCODING renamed
        APPEND fresh 12
        OBJECT ENCODING fresh
        APPEND fresh 3
        OBJECT ENCODING fresh
        SETRANGE made 0 12
        OBJECT ENCODING made
        SETRANGE made 0 ""
        SETRANGE n 0 ""
        SET n 1
        SETRANGE n 0 ""
        OBJECT ENCODING n
        SET short {x*44}
        OBJECT ENCODING short
        SET long {x*45}
        OBJECT ENCODING long
        SET text 1.5
        INCRBYFLOAT text 0.00000000000000000000000001
        OBJECT ENCODING text
        HSET hash f v
        GETEX hash
        APPEND hash x
        MULTI
        APPEND made 3
        OBJECT ENCODING made
        INCRBYFLOAT n 2
        OBJECT ENCODING n
        EXEC
        OBJECT ENCODING made
        OBJECT ENCODING n
        "#,
    );
}

#[test]
fn small_integers_are_shared_and_access_is_told_by_the_policy() {
    check(
        r#"
        MSET a 0 b 9999 c 10000 d -1 e x
        OBJECT REFCOUNT a
        OBJECT REFCOUNT b
        OBJECT REFCOUNT c
        OBJECT REFCOUNT d
        OBJECT REFCOUNT e
        APPEND a ""
        OBJECT REFCOUNT a
        OBJECT REFCOUNT none
        OBJECT FREQ e
        OBJECT IDLETIME e
        OBJECT FREQ none
        CONFIG SET maxmemory-policy sometimes
        CONFIG SET maxmemory-policy allkeys-LFU
        CONFIG GET maxmemory-policy
        OBJECT IDLETIME e
        OBJECT IDLETIME none
        CONFIG SET maxmemory-policy noeviction
        CONFIG SET maxmemory much
        "#,
    );
}

#[test]
fn collections_are_compact_up_to_the_limits_that_are_set() {
    check(
        r#"
        ~~CONFIG GET hash-max-*
        ~~CONFIG GET zset-max-*
        ~~CONFIG GET set-max-*
        CONFIG SET hash-max-ziplist-entries 2 hash-max-listpack-value 4
        CONFIG GET hash-max-listpack-entries
        HSET h a 1 b 2
        OBJECT ENCODING h
        HSET h c 3
        OBJECT ENCODING h
        HSET v f 1234
        OBJECT ENCODING v
        HINCRBYFLOAT v f 10000
        OBJECT ENCODING v
        CONFIG SET zset-max-listpack-entries 0
        ZADD z 1 a
        OBJECT ENCODING z
        CONFIG SET zset-max-listpack-entries 2 zset-max-ziplist-value 3
        ZADD y -0.0 a 1 b
        OBJECT ENCODING y
        ZSCORE y a
        ZADD y 1 abcd
        OBJECT ENCODING y
        ZADD y -0.0 c
        ZSCORE y c
        CONFIG SET set-max-intset-entries 2
        SADD s 1 2
        OBJECT ENCODING s
        SADD s 3
        OBJECT ENCODING s
        CONFIG SET set-max-intset-entries -1
        CONFIG SET set-max-intset-entries many
        CONFIG SET hash-max-listpack-value -1
        CONFIG SET zset-max-ziplist-value many
        CONFIG SET client-query-buffer-limit x
        CONFIG SET client-query-buffer-limit 1
        CONFIG SET hash-max-ziplist-entries 512 hash-max-listpack-value 64
        OBJECT ENCODING h
        HSET w f {x*64}
        OBJECT ENCODING w
        "#,
    );
}

#[test]
fn hashes_are_compact_up_to_512_fields() {
    with_pair(&["2"], |pair| {
        pair.fill((0..512).map(|n| format!("HSET h {n} v")));
        pair.check("OBJECT ENCODING h");
        pair.check("HSET h another v");
        pair.check("OBJECT ENCODING h");
    });
}

fn digests(pair: &mut Pair) {
    pair.check("DEBUG DIGEST");
    pair.check("DEBUG DIGEST-VALUE string number list set integers zset hash none large");
}

#[test]
fn the_digest_of_a_data_set_is_the_one_that_redis_gives() {
    with_pair(&["2", "3"], |pair| {
        digests(pair);
        pair.table(
            r#"
            SET string value
            SET number 17
            RPUSH list a b c 1
            SADD set a b c
            SADD integers 3 1 2
            ZADD zset 0.1 a -inf b 1e300 c inf d 3 e
            HSET hash f v g "" "" w
            PEXPIRE hash 1000000
            SELECT 3
            SET string value
            SELECT 0
            DEBUG POPULATE 1000
            DEBUG POPULATE 10 other 20
            DEBUG POPULATE 10 other 3
            DEBUG POPULATE -1
            "#,
        );
        digests(pair);
        pair.check("LPUSH list first");
        pair.check("SET large {0123456789abcdef*40000}");
        digests(pair);
        pair.check("RENAME large larger");
        pair.check("DEBUG DIGEST");
    });
}

#[test]
fn debug_protocol_answers_with_each_type() {
    check(
        r#"
        DEBUG PROTOCOL string
        DEBUG PROTOCOL INTEGER
        DEBUG PROTOCOL double
        DEBUG PROTOCOL null
        DEBUG PROTOCOL array
        DEBUG PROTOCOL set
        DEBUG PROTOCOL map
        DEBUG PROTOCOL true
        DEBUG PROTOCOL false
        DEBUG PROTOCOL verbatim
        DEBUG PROTOCOL nothing
        DEBUG NOTHING
        "#,
    );
}

/// EXEC runs unless something changed that was there when it was watched.
#[test]
fn watched_keys_are_touched_by_empty_appends_and_not_by_flushes_of_what_is_expired() {
    with_pair(&["2"], |pair| {
        pair.table("DEBUG SET-ACTIVE-EXPIRE 0\nSET stale v PX 1\nSET live v");
        // Both servers live on the kernel's clock.
        let _ = std::process::Command::new("sleep").arg("0.02").status();
        pair.table("WATCH stale\nFLUSHDB\nMULTI\nPING\nEXEC");
        pair.table("SET live v\nWATCH live\nFLUSHDB\nMULTI\nPING\nEXEC");
        pair.table("SET live v\nWATCH live\nAPPEND live \"\"\nMULTI\nPING\nEXEC\nDEBUG SET-ACTIVE-EXPIRE 1");
    });
}
