//! The reply counter must come to the same whatever the pieces in which bytes arrive.

use pumice_compare::net::reply::{Reply, ReplyCounter};

fn count(input: &[u8], piece: usize) -> Result<Vec<Reply>, String> {
    let (mut counter, mut seen) = (ReplyCounter::default(), Vec::new());
    for part in input.chunks(piece) {
        counter.feed(part, |_| None, |reply| seen.push(reply))?;
    }
    Ok(seen)
}

#[test]
fn replies_are_counted_alike_in_any_pieces() {
    let input = b"+OK\r\n$5\r\nhe\r\no\r\n$-1\r\n:12\r\n-ERR no\r\n$0\r\n\r\n";
    let bulk = |bytes| Reply::Bulk { bytes, right: true };
    let wanted = [Reply::Simple, bulk(5), Reply::Nil, Reply::Simple, Reply::Error, bulk(0)];
    for piece in 1..=input.len() {
        assert_eq!(count(input, piece).as_deref(), Ok(&wanted[..]), "pieces of {piece}");
    }
}

#[test]
fn a_value_that_differs_from_the_expected_one_is_told() {
    let (mut counter, mut seen) = (ReplyCounter::default(), Vec::new());
    let expected: &[u8] = b"good";
    counter.feed(b"$4\r\ngood\r\n$4\r\nevil\r\n", |_| Some(expected), |r| seen.push(r)).expect("well formed");
    let bulk = |right| Reply::Bulk { bytes: 4, right };
    assert_eq!(seen, [bulk(true), bulk(false)]);
}

#[test]
fn nonsense_is_an_error_and_not_a_hang() {
    assert!(count(b"hello\r\n", 3).is_err());
    assert!(count(b"$x\r\n", 1).is_err());
    assert!(count(&[b'+'; 5000], 512).is_err());
}
