//! Strings, counters and parts of strings.

mod common;
use common::check;

#[test]
fn values_are_set_and_read() {
    check(
        r#"
        > SET a 1
        OK
        > GET a
        "1"
        > GET b
        nil
        > SET a 2 NX
        nil
        > SET b 2 XX
        nil
        > SET a 2 GET
        "1"
        > SET a 3 EX 100 NX GET
        "2"
        > STRLEN a
        1
        > SETNX a 4
        0
        > SETNX c 4
        1
        > GETDEL c
        "4"
        > EXISTS a b c
        1
        > MSET a 1 b 2 a 3
        OK
        > MGET a b c
        ["3", "2", nil]
        > MSETNX x 1 a 2
        0
        > MSETNX x 1 y 2
        1
        > DBSIZE
        4
        > DEL a b c x
        3
        > KEYS *
        ["y"]
        > TYPE y
        string
        > HGET y f
        (error) WRONGTYPE Operation against a key holding the wrong kind of value
        > INCR n
        1
        > DECRBY n 5
        -4
        > INCRBY n 9223372036854775807
        9223372036854775803
        > INCRBY n 5
        (error) ERR increment or decrement would overflow
        > INCRBYFLOAT f 0.1
        "0.1"
        > INCRBYFLOAT f 0.2
        "0.3"
        > APPEND y 34
        3
        > GETRANGE y -2 -1
        "34"
        > SETRANGE y 5 x
        6
        > GET y
        "234\x00\x00x"
        > FOO bar
        (error) ERR unknown command 'FOO', with args beginning with: 'bar' 
        > GET
        (error) ERR wrong number of arguments for 'get' command
        "#,
    );
}
