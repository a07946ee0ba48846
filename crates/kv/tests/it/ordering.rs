//! Comparing keys by codes: whatever they share, however long they are, it comes to what comparing their bytes says.

use pumice_base::rng::Rng;
use pumice_kv::Direction;
use pumice_kv::codes::{Fences, code, shared_len};
use pumice_kv::index::{Index, IndexBuilder};
use pumice_kv::queue::SourceQueue;

/// A key that shares more or less with others, ends anywhere, and holds zeros, which codes are filled up with.
fn some_key(rng: &mut Rng) -> Vec<u8> {
    let prefixes: [&[u8]; 5] =
        [b"", b"user:", b"user:0000", b"user:00000000000000000000", b"\xFF\xFF\xFF\xFF\xFF"];
    let mut key = prefixes[rng.below(5) as usize].to_vec();
    key.extend((0..rng.below(11)).map(|_| [0, 1, b'a', 0xFF][rng.below(4) as usize]));
    key
}

/// Against sorting: whatever the sources hold, and however late they are fed, the first is always the one with the least
/// key, or the greatest; of equals the newest.
#[test]
fn sources_come_in_the_order_of_their_keys() {
    for seed in 0..400 {
        let mut rng = Rng::from_seed(seed);
        let direction = if seed % 2 == 0 { Direction::Forward } else { Direction::Backward };
        let ordered = |keys: &mut Vec<(Vec<u8>, usize)>| {
            keys.sort_unstable_by(|(a, at), (b, bt)| match direction {
                Direction::Forward => a.cmp(b).then(at.cmp(bt)),
                Direction::Backward => b.cmp(a).then(at.cmp(bt)),
            });
        };
        // All of a few sources with up to some hundred keys, so that what they share is found anew, too.
        let most = [8, 300][(seed / 2 % 2) as usize];
        let count = 1 + rng.below(9) as usize;
        let mut wanted = Vec::new();
        let mut rest: Vec<Vec<Vec<u8>>> = (0..count)
            .map(|source| {
                let mut keys: Vec<_> = (0..rng.below(most)).map(|_| (some_key(&mut rng), source)).collect();
                ordered(&mut keys);
                keys.dedup();
                wanted.extend_from_slice(&keys);
                keys.into_iter().rev().map(|(key, _)| key).collect()
            })
            .collect();
        ordered(&mut wanted);
        let mut sources: Vec<Option<Vec<u8>>> = rest.iter_mut().map(Vec::pop).collect();
        let mut queue = SourceQueue::new(direction);
        (0..count).for_each(|at| queue.push(at, |at| sources[at].as_deref()));
        let mut found = Vec::new();
        while let Some(first) = queue.first() {
            let second = queue.second(|at| sources[at].as_deref());
            let mut others: Vec<_> = (0..count)
                .filter(|&at| at != first)
                .filter_map(|at| Some((sources[at].clone()?, at)))
                .collect();
            ordered(&mut others);
            assert_eq!(second, others.first().map(|(_, at)| *at), "seed {seed}");
            let key = sources[first].take().expect("a source in the queue has a key");
            // What comes in pieces is without a key until the next piece is there.
            let is_late = rng.below(4) == 0;
            if !is_late {
                sources[first] = rest[first].pop();
            }
            queue.update(|at| sources[at].as_deref());
            if is_late {
                sources[first] = rest[first].pop();
                queue.push(first, |at| sources[at].as_deref());
            }
            let same = queue.first_at(&key, |at| sources[at].as_deref());
            let wanted_same = queue.first().filter(|&at| sources[at].as_ref() == Some(&key));
            assert_eq!(same, wanted_same, "seed {seed}");
            found.push((key, first));
        }
        assert_eq!(found, wanted, "seed {seed}");
    }
}

#[test]
fn codes_order_keys_as_their_bytes_do() {
    let mut rng = Rng::from_seed(1);
    for _ in 0..20_000 {
        let (a, b) = (some_key(&mut rng), some_key(&mut rng));
        let shared = shared_len(&a, &b);
        assert!(a[..shared] == b[..shared] && (a.get(shared) != b.get(shared) || a == b), "{a:?} and {b:?}");
        let codes = code(&a, shared).cmp(&code(&b, shared));
        assert!(codes.is_eq() || codes == a.cmp(&b), "{a:?} and {b:?}");
    }
}

#[test]
fn fences_find_what_a_search_of_the_keys_finds() {
    for seed in 0..300 {
        let mut rng = Rng::from_seed(seed);
        let mut keys: Vec<Vec<u8>> = (0..rng.below(40)).map(|_| some_key(&mut rng)).collect();
        // All share nothing, something, or more than is kept of it.
        let shared = [vec![], b"tenant:0000:".to_vec(), vec![b'x'; 3000]][seed as usize % 3].clone();
        keys.iter_mut().for_each(|key| drop(key.splice(0..0, shared.iter().copied())));
        keys.sort_unstable();
        let fences = Fences::of(keys.iter().map(Vec::as_slice));
        let mut wanted: Vec<Vec<u8>> = (0..200).map(|_| some_key(&mut rng)).collect();
        wanted.extend(keys.iter().cloned());
        wanted.extend(wanted.clone().into_iter().map(|key| [&shared[..], &key].concat()));
        for wanted in wanted {
            let below = fences.below(&wanted, |at, told| {
                assert_eq!(told, code(&keys[at], fences.shared().len()), "seed {seed}: the code of key {at}");
                keys[at] < wanted
            });
            assert_eq!(below, keys.partition_point(|key| *key < wanted), "seed {seed}: {wanted:?}");
        }
    }
}

#[test]
fn an_index_finds_the_block_that_a_search_of_its_keys_finds() {
    for seed in 0..600 {
        let mut rng = Rng::from_seed(seed);
        let mut keys: Vec<Vec<u8>> = (0..rng.below(40)).map(|_| some_key(&mut rng)).collect();
        let shared = [vec![], b"tenant:0000:".to_vec(), vec![b'x'; 3000]][seed as usize % 3].clone();
        keys.iter_mut().for_each(|key| drop(key.splice(0..0, shared.iter().copied())));
        if seed % 2 == 0 {
            // None has more behind what all share than its number.
            keys.iter_mut().for_each(|key| key.truncate(shared.len().min(1024) + rng.below(9) as usize));
        }
        keys.sort_unstable();
        let (mut builder, mut bytes) = (IndexBuilder::default(), Vec::new());
        let lens: Vec<u32> = keys.iter().map(|_| rng.below(5000) as u32).collect();
        keys.iter().zip(&lens).for_each(|(key, len)| builder.push(key, *len));
        builder.encode(&mut bytes);
        let end = lens.iter().sum();
        let index = Index::decode(&bytes, end).expect("it is one");
        assert!(
            Index::decode(&bytes, end + 1).is_none()
                && Index::decode(&bytes[..bytes.len() - 1], end).is_none()
        );
        assert_eq!(index.blocks(), keys.len());
        let mut offset = 0;
        for (block, len) in lens.iter().enumerate() {
            assert_eq!(index.place(block), (offset, *len), "seed {seed}, block {block}");
            offset += len;
        }
        let mut wanted: Vec<Vec<u8>> = (0..200).map(|_| some_key(&mut rng)).collect();
        wanted.extend(keys.iter().cloned());
        // Longer than a key by zeros, which its number does not tell from the key.
        wanted.extend(keys.iter().map(|key| [&key[..], &[0; 3][..rng.below(4) as usize]].concat()));
        wanted.extend(
            keys.iter().map(|key| key[..key.len() - rng.below(9).min(key.len() as u64) as usize].to_vec()),
        );
        wanted.extend(wanted.clone().into_iter().map(|key| [&shared[..], &key].concat()));
        for wanted in wanted {
            let below = keys.partition_point(|key| *key < wanted);
            assert_eq!(
                index.block_of(&wanted),
                (below < keys.len()).then_some(below),
                "seed {seed}: {wanted:?}"
            );
        }
        if seed % 2 == 0 {
            assert!(index.bytes() <= 13 * keys.len() + 4 + shared.len().min(1024) + 40, "seed {seed}");
        }
    }
}

#[test]
fn an_index_that_claims_more_blocks_than_it_has_bytes_for_is_refused() {
    // The number as a varint, and no block behind it.
    for claimed in [&[1][..], &[0xff, 0x7f], &[0xff, 0xff, 0xff, 0xff, 0x7f], &[0xff; 9]] {
        assert!(Index::decode(claimed, 0).is_none(), "{claimed:?}");
    }
}
