//! What the Redis face stores in the ordered map: the databases' record, heads of collections, notes of what is unfinished, the
//! keys of elements; and the small languages of its commands that `redis.rs` leaves out (long doubles, ranges).

use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use pumice_kv::SliceId;
use pumice_node::Place;
use pumice_redis::keyspace::{
    self, Collection, Compact, DATABASES, HINT_GAP, HeadKey, Site, Space, Spaces, Type, encode_score,
};
use pumice_redis::zset_spec::{LexRange, ScoreRange};
use pumice_redis::{Gap, decode_order, long_double};

use super::split;

const COMPACT: Compact = Compact { entries: 128, bytes: 64 };
const HEADS: [Type; 4] = [Type::List, Type::Set, Type::Zset, Type::Hash];
const SLOTS: u16 = 16_384;

fn place(slot: u16) -> Place {
    assert!(slot < SLOTS, "slot {slot}");
    Place { drive: slot % 3, slice: SliceId(slot / 3 % 64) }
}

fn head(kind: Type, value: &[u8]) -> Option<Collection> {
    let key = HeadKey::placed(0, Space(1), b"{tag}key", place);
    Collection::decode(key, kind, 0, 7, &Bytes::copy_from_slice(value), COMPACT, place)
}

/// The part of an input, and which one it is.
fn part(which: u8, bytes: &[u8]) -> Vec<u8> {
    [&[which][..], bytes].concat()
}

/// As older builds wrote it.
fn databases(next: u32, current: impl Fn(u32) -> u32, previous: impl Fn(u32) -> u32) -> Vec<u8> {
    let mut record = vec![1, 0, 0, 0];
    record.extend_from_slice(&next.to_le_bytes());
    for database in 0..DATABASES as u32 {
        record.extend_from_slice(&current(database).to_le_bytes());
        record.extend_from_slice(&previous(database).to_le_bytes());
    }
    record
}

/// A head: id, count, home, hints, and of a list where it begins and ends.
fn stored(count: u64, home: u16, hints: u8, list: Option<(i64, i64)>) -> Vec<u8> {
    let mut value = [(3u64 << 48 | 11).to_le_bytes(), count.to_le_bytes()].concat();
    value.extend_from_slice(&home.to_le_bytes());
    value.extend_from_slice(&[hints, 0, 0, 0, 0, 0]);
    if let Some((first, end)) = list {
        value.extend_from_slice(&first.to_le_bytes());
        value.extend_from_slice(&end.to_le_bytes());
    }
    value
}

/// Records, each behind the number of its kind.
pub fn record_seeds() -> Vec<Vec<u8>> {
    let list = stored(90, 5000, HINT_GAP, Some((-50, 50)));
    let gap = |bytes: &[u8]| part(5, &[&list[..], bytes].concat());
    let [start, len, until] = [-20i64, 10, 30].map(i64::to_le_bytes);
    let site = Site::decode(1, &note(Space(3), 77), &[9, 0]).expect("a note");
    vec![
        part(0, &Spaces::default().moved(&[0, 9], &[]).expect("there are more").0),
        part(0, &databases(17, |d| d + 1, |_| 0)),
        part(0, &databases(40, |d| d + 20, |d| if d == 3 { 19 } else { 0 })),
        part(0, &databases(u32::MAX, |d| d + 1, |_| 0)),
        part(1, &list),
        part(1, &stored(7, 16_383, 0, Some((-2, 5)))),
        part(2, &stored(100, 1, 3, None)),
        part(3, &stored(1, 0, 4, None)),
        gap(&[start, len].concat()),
        gap(&[&[start, len, until].concat()[..], &[1]].concat()),
        part(6, &[&[9, 0][..], &site.key()].concat()),
        part(7, &[&[1u8][..], &encode_score(-0.0), b"member"].concat()),
        part(7, &[&[0u8][..], &encode_score(f64::NEG_INFINITY), b""].concat()),
        part(8, &keyspace::element_key(Space(1), 5, 0, b"field")),
    ]
}

/// The key of a note of what is under construction.
fn note(space: Space, id: u64) -> Vec<u8> {
    [&[0; 5][..], b"building", &space.0.to_be_bytes(), &id.to_be_bytes()].concat()
}

/// What decodes can be reckoned with, and is written one way.
pub fn records(input: &[u8]) {
    let ([which], bytes) = split::<1>(input);
    match which % 9 {
        0 => check_databases(bytes),
        which @ 1..=4 => {
            let kind = HEADS[usize::from(which) - 1];
            if let Some(found) = head(kind, bytes) {
                check_head(&found, bytes);
            }
        }
        5 => {
            let (value, record) = bytes.split_at(bytes.len().min(40));
            let Some(gap) = Gap::decode(record) else { return };
            assert_eq!(&gap.encode()[..], record, "a gap is written one way");
            if let Some(list) = head(Type::List, value) {
                let _ = gap.lies_in(&list);
            }
        }
        6 => {
            let ([low, high], key) = split::<2>(bytes);
            let Some(site) = Site::decode(0, key, &[low, high]) else { return };
            assert_eq!((&site.key()[..], site.value()), (key, [low, high]), "a note is written one way");
        }
        7 => {
            let ([value], field) = split::<1>(bytes);
            let Ok((member, score)) = decode_order(&Bytes::copy_from_slice(field), &[value]) else { return };
            assert_eq!(member, field[8..]);
            // The bits of a number sort as it does; only one of the zeros is among them.
            assert!(score == 0.0 || encode_score(score) == field[..8], "{score}");
        }
        _ => check_key(bytes),
    }
}

fn check_databases(bytes: &[u8]) {
    let Some(spaces) = Spaces::decode(bytes) else { return };
    let all: Vec<usize> = (0..DATABASES).collect();
    for database in 0..DATABASES {
        assert_eq!(spaces.database_of(spaces.of(database)), Some(database), "each has a space of its own");
    }
    let stays = spaces.moved(&[], &[]).expect("nothing is given out").0;
    assert_eq!(&stays[1..4], [0; 3]);
    if bytes[0] == 1 {
        let left =
            |database: usize| bytes[12 + 8 * database..].first_chunk().map(|word| u32::from_le_bytes(*word));
        let mut left = (0..DATABASES).filter_map(left).filter(|space| *space != 0);
        assert!(left.all(|space| spaces.is_left(Space(space))), "what was left is nobody's");
        let now = Spaces::decode(&stays).expect("what is stored in its place is read");
        (0..DATABASES).for_each(|database| assert_eq!(now.of(database), spaces.of(database)));
    } else {
        assert!(stays[4..] == bytes[4..], "a record is written one way");
    }
    let Some((_, once)) = spaces.moved(&all[..3], &[]) else { return };
    let Some((record, moved)) = spaces.moved(&all, &once) else { return };
    let again = Spaces::decode(&record).expect("what was stored is read again");
    spaces.apply(&moved, 9);
    for database in 0..DATABASES {
        assert_eq!(spaces.of(database), again.of(database));
    }
}

fn check_head(found: &Collection, bytes: &[u8]) {
    let (again, len) = found.encode();
    assert_eq!(again[..19], bytes[..19]);
    assert_eq!(again[24..len], bytes[24..], "a head is written one way");
    assert_eq!(found.elements, place(found.home));
    assert!(found.count > 0 && i64::try_from(2 * found.count).is_ok());
    if found.kind == Type::List {
        // An element more at either end, and the last index of all.
        let (first, end) = (found.first - 1, found.end + 1);
        assert!(found.count <= (end - first) as u64 - 2);
        assert!(found.hints & HINT_GAP != 0 || found.first + found.count as i64 == found.end);
    }
}

fn check_key(raw: &[u8]) {
    let space = keyspace::space_of(raw);
    match keyspace::user_key(raw) {
        Some(user) => {
            let again = HeadKey::placed(0, space, user, place);
            assert_eq!((again.raw(), again.user(), again.space()), (raw, user, space));
        }
        None if raw.len() >= keyspace::ELEMENT_PREFIX_BYTES && raw[4] == 1 => {
            let id = u64::from_be_bytes(raw[5..13].try_into().expect("eight bytes"));
            let field = &raw[keyspace::ELEMENT_PREFIX_BYTES..];
            assert_eq!(&keyspace::element_key(space, id, raw[13], field)[..], raw);
        }
        None => {}
    }
    if let Some(after) = keyspace::after_prefix(raw) {
        assert!(
            after[..] > *raw && !after.starts_with(raw),
            "{after:?} is behind all that begins with {raw:?}"
        );
    }
}

/// Texts of commands: two words, a zero byte between them, behind the number of what they are.
pub fn text_seeds() -> Vec<Vec<u8>> {
    let sums: [&[u8]; 7] = [
        b"0.1\x000.2",
        b"3.0e3\0-17",
        b"1.18973149535723176502e+4932\x001e4931",
        b"3.64519953188247460253e-4951\x000",
        b"0x1.8p-16445\0-0x10",
        b"inf\0-inf",
        b"10500000000000000000000\x00.5",
    ];
    let scores: [&[u8]; 6] = [b"-inf\0+inf", b"(1.5\x002", b"0x1p3\0(1e400", b"\0 3", b"-0\x000", b"(5\0(5"];
    let names: [&[u8]; 5] = [b"-\0+", b"[a\0(b", b"(a\0[a", b"+\0-", b"[\0[\xff"];
    let of = |which: u8, texts: &[&[u8]]| texts.iter().map(|text| part(which, text)).collect::<Vec<_>>();
    [of(0, &sums), of(1, &scores), of(2, &names)].concat()
}

/// Sums print as numbers that stay what they are; ranges hold what their bounds in the stored order hold.
pub fn texts(input: &[u8]) {
    let ([which], words) = split::<1>(input);
    let at = words.iter().position(|&b| b == 0).unwrap_or(words.len());
    let (first, second) = (&words[..at], words.get(at + 1..).unwrap_or_default());
    match which % 3 {
        0 => check_sum(first, second),
        1 => check_scores(first, second),
        _ => check_names(first, second),
    }
}

fn check_sum(value: &[u8], increment: &[u8]) {
    if long_double::check(increment).is_none() {
        return;
    }
    let Ok(sum) = long_double::add_text(value, increment) else { return };
    assert!(long_double::is_finite(&sum), "{}", String::from_utf8_lossy(&sum));
    let again = long_double::add_text(&sum, b"0").expect("a sum is a number");
    assert_eq!(again, sum, "what was printed is read as what it was");
}

fn check_scores(min: &[u8], max: &[u8]) {
    let Ok(range) = ScoreRange::parse(min, max) else { return };
    assert!(!range.min.is_nan() && !range.max.is_nan(), "{range:?}");
    let fields = range.fields();
    let near = |score: f64| [score, score.next_down(), score.next_up()];
    let probes = [range.min, range.max, 0.0, f64::INFINITY, f64::NEG_INFINITY].map(near);
    for score in probes.into_iter().flatten().chain([-0.0]) {
        let above = if range.min_exclusive { score > range.min } else { score >= range.min };
        let below = if range.max_exclusive { score < range.max } else { score <= range.max };
        let lies_in =
            fields.as_ref().is_some_and(|fields| holds(fields.lower(), fields.upper(), score, b"m"));
        assert_eq!(lies_in, above && below, "{score} in {range:?}");
    }
}

fn check_names(min: &[u8], max: &[u8]) {
    let Ok(range) = LexRange::parse(min, max) else { return };
    let fields = range.fields(encode_score(1.0));
    let texts = [min, max].map(|text| text.get(1..).unwrap_or_default());
    let longer = texts.map(|text| [text, b"\0"].concat());
    for name in [&b""[..], texts[0], texts[1], &longer[0], &longer[1], b"\xff\xff"] {
        assert!(!range.is_empty() || !range.contains(name), "{name:?} in the empty {range:?}");
        let lies_in = !range.is_empty() && holds(fields.lower(), fields.upper(), 1.0, name);
        assert_eq!(lies_in, range.contains(name), "{name:?} in {range:?}");
    }
}

/// Whether a member lies within bounds on the stored order.
fn holds(lower: Bound<&[u8]>, upper: Bound<&[u8]>, score: f64, name: &[u8]) -> bool {
    let field = [&encode_score(score)[..], name].concat();
    RangeBounds::<[u8]>::contains(&(lower, upper), &field[..])
}
