//! BCH codes: what t flipped bits are mended by, what more of them say, and that the code is the one that it claims to be.

use pumice_base::rng::Rng;
use pumice_flash::bch::Bch;

/// (data bytes, t) of the codes under test.
const CODES: [(usize, usize); 7] =
    [(64, 1), (512, 8), (1024, 1), (1024, 4), (1024, 30), (1024, 60), (2048, 12)];

struct Word {
    data: Vec<u8>,
    parity: Vec<u8>,
}

fn word(code: &Bch, rng: &mut Rng) -> Word {
    let mut word = Word { data: vec![0; code.data_bytes()], parity: vec![0; code.parity_bytes()] };
    rng.fill(&mut word.data);
    code.encode(&word.data, &mut word.parity);
    word
}

/// Flips `count` different bits anywhere in the word but the unused ones at its end.
fn flip(word: &mut Word, count: usize, used_parity_bits: usize, rng: &mut Rng) {
    let (data_bits, mut done) = (word.data.len() * 8, Vec::new());
    while done.len() < count {
        let bit = rng.below((data_bits + used_parity_bits) as u64) as usize;
        if done.contains(&bit) {
            continue;
        }
        done.push(bit);
        let (bytes, at) =
            if bit < data_bits { (&mut word.data, bit) } else { (&mut word.parity, bit - data_bits) };
        bytes[at / 8] ^= 0x80 >> (at % 8);
    }
}

/// Runs `check` on seeded words of each code.
fn check(rounds: u64, check: impl Fn(&Bch, usize, &mut Rng)) {
    for (data_bytes, t) in CODES {
        let code = Bch::new(data_bytes, t).expect("a code");
        for seed in 0..rounds {
            let told = format!("data bytes {data_bytes}, t {t}, seed {seed}");
            let run = std::panic::AssertUnwindSafe(|| check(&code, t, &mut Rng::from_seed(seed)));
            assert!(std::panic::catch_unwind(run).is_ok(), "{told}");
        }
    }
}

/// At least so many bits of parity are in use.
fn used_bits(code: &Bch) -> usize {
    code.parity_bytes() * 8 - 7
}

#[test]
fn up_to_t_flipped_bits_are_mended_and_counted() {
    check(40, |code, t, rng| {
        let whole = word(code, rng);
        for count in [0, 1, 2, 3, t / 2, t - 1, t].into_iter().filter(|count| *count <= t) {
            let mut read = Word { data: whole.data.clone(), parity: whole.parity.clone() };
            flip(&mut read, count, used_bits(code), rng);
            assert_eq!(code.decode(&mut read.data, &mut read.parity), Ok(count));
            assert!(read.data == whole.data && read.parity == whole.parity, "{count} bits");
        }
    });
}

#[test]
fn flipped_bits_at_both_ends_and_side_by_side_are_mended() {
    check(2, |code, t, rng| {
        let whole = word(code, rng);
        for start in [0, whole.data.len() * 8 - 4, whole.data.len() * 8 + used_bits(code) - t.min(8)] {
            let mut read = Word { data: whole.data.clone(), parity: whole.parity.clone() };
            let count = t.min(8);
            for bit in start..start + count {
                let data_bits = read.data.len() * 8;
                let (bytes, at) =
                    if bit < data_bits { (&mut read.data, bit) } else { (&mut read.parity, bit - data_bits) };
                bytes[at / 8] ^= 0x80 >> (at % 8);
            }
            assert_eq!(code.decode(&mut read.data, &mut read.parity), Ok(count));
            assert!(read.data == whole.data && read.parity == whole.parity);
        }
    });
}

#[test]
fn more_than_t_flipped_bits_are_reported_and_nothing_is_changed() {
    check(40, |code, t, rng| {
        // With a small t a word comes near another codeword too often to promise anything.
        if t < 8 {
            return;
        }
        let whole = word(code, rng);
        for count in [t + 1, t + 2, 2 * t, 5 * t] {
            let mut read = Word { data: whole.data.clone(), parity: whole.parity.clone() };
            flip(&mut read, count, used_bits(code), rng);
            let before = (read.data.clone(), read.parity.clone());
            let error = code.decode(&mut read.data, &mut read.parity).expect_err("too many");
            assert_eq!(error.correctable_bits, t);
            assert!((read.data, read.parity) == before, "{count} bits");
        }
    });
}

#[test]
fn whatever_is_mended_is_a_codeword() {
    check(60, |code, t, rng| {
        let mut read = word(code, rng);
        flip(&mut read, t + 1 + rng.below(3) as usize, used_bits(code), rng);
        let before = (read.data.clone(), read.parity.clone());
        match code.decode(&mut read.data, &mut read.parity) {
            Ok(count) => {
                assert!((1..=t).contains(&count));
                let mut parity = vec![0; code.parity_bytes()];
                code.encode(&read.data, &mut parity);
                assert!(parity == read.parity, "a wrong mend must at least be consistent");
            }
            Err(_) => assert!((read.data, read.parity) == before),
        }
    });
}

/// Parity computed bit by bit by other code (long division of Python's integers): the format on flash.
#[test]
fn parity_is_that_of_the_textbook() {
    let known = [
        (512, 8, 104, "77a906557c05262cf49d253890"),
        (1024, 4, 56, "24e05318e8d1ba"),
        (
            1024,
            30,
            420,
            "5d6c68f3840356abdb9d2e2368f8f25ebf3167a3bf553020fa424868f623dbf66d2d85e737f9f283294b0ea27922ea307c96b074d0",
        ),
        (2048, 12, 180, "647636f0e43fa45156e44b2b6116cdf993151a57679150"),
    ];
    for (data_bytes, t, parity_bits, expected) in known {
        let code = Bch::new(data_bytes, t).expect("a code");
        let data: Vec<u8> = (0..data_bytes).map(|i| (i * 7 + i / 256 * 13 + 5) as u8).collect();
        let mut parity = vec![0; code.parity_bytes()];
        code.encode(&data, &mut parity);
        let hex: String = parity.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected, "data bytes {data_bytes}, t {t}");
        assert_eq!(parity.len(), usize::div_ceil(parity_bits, 8));
    }
}

#[test]
fn codes_that_do_not_exist_are_refused() {
    for (data_bytes, t) in [(0, 4), (32, 4), (4096, 4), (1024, 0), (1024, 69)] {
        let error = Bch::new(data_bytes, t).err().expect("no code").to_string();
        assert!(error.contains("64 to 2,048 bytes"), "{error}");
    }
}
