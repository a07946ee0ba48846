//! Keys, values and distributions.

use pumice_compare::keys::{Distribution, Picker, Rng, Values, key};

#[test]
fn keys_sort_as_their_indexes() {
    let mut rng = Rng::new(1);
    for _ in 0..1000 {
        let (a, b) = (rng.below(1 << 40), rng.below(1 << 40));
        assert_eq!(key(a).cmp(&key(b)), a.cmp(&b), "{a} and {b}");
    }
}

#[test]
fn a_value_matches_its_key_and_no_other() {
    let values = Values::new(100);
    assert!(values.matches(7, values.value(7)));
    assert!(!values.matches(8, values.value(7)));
    assert!(!values.matches(7, &values.value(7)[..99]));
}

#[test]
fn uniform_picks_reach_every_key_about_alike() {
    let mut picker = Picker::new(Distribution::Uniform, 10, 3);
    let mut counts = [0; 10];
    (0..10_000).for_each(|_| counts[picker.pick() as usize] += 1);
    assert!(counts.iter().all(|&c| (800..1200).contains(&c)), "{counts:?}");
}

#[test]
fn zipfian_picks_favour_few_keys_and_stay_in_range() {
    let keys = 10_000;
    let mut picker = Picker::new(Distribution::Zipfian, keys, 3);
    let mut counts = vec![0u32; keys as usize];
    (0..200_000).for_each(|_| counts[picker.pick() as usize] += 1);
    counts.sort_unstable_by(|a, b| b.cmp(a));
    // With theta 0.99 over 10,000 keys, the first key takes 1/zeta(10,000) = 10%, the first hundred just over half.
    let first = f64::from(counts[0]) / 200_000.0;
    let hundred = f64::from(counts[..100].iter().sum::<u32>()) / 200_000.0;
    assert!((0.09..0.12).contains(&first), "the first key took {first}");
    assert!((0.48..0.58).contains(&hundred), "the first hundred took {hundred}");
}
