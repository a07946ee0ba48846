//! Buckets of latencies.

use pumice_base::latency::{Bucket, LatencyHistogram, SharedHistogram};
use pumice_base::rng::Rng;

#[test]
fn a_bucket_ends_where_the_next_begins_and_is_an_eighth_wide_at_most() {
    let mut random = Rng::from_seed(1);
    let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
    let others = (0..10_000).map(|_| random.next_u64() >> random.below(64));
    for ns in edges.chain(others.collect::<Vec<_>>()).chain([u64::MAX]) {
        let bucket = Bucket::of(ns);
        let last = bucket.last_ns();
        assert!(last >= ns && last - ns <= ns / 8, "{ns} ends with {last}");
        assert_eq!(Bucket::of(last), bucket, "{ns}");
        if let Some(next) = last.checked_add(1) {
            assert_ne!(Bucket::of(next), bucket, "{ns}");
        }
    }
}

/// What is counted by one owner and what by many is the same, and both are what sorting says.
#[test]
fn quantiles_sums_and_counts_are_those_of_the_latencies() {
    for seed in 0..20 {
        let mut random = Rng::from_seed(seed);
        let (mut owned, shared) = (LatencyHistogram::default(), SharedHistogram::default());
        assert!(shared.load().is_none());
        let mut all: Vec<u64> =
            (0..=random.below(2000)).map(|_| random.next_u64() >> (20 + random.below(40))).collect();
        for &ns in &all {
            owned.record(ns);
            shared.add(Bucket::of(ns), 1);
        }
        all.sort_unstable();
        let loaded = shared.load().expect("some were counted");
        assert_eq!((owned.count(), loaded.count()), (all.len() as u64, all.len() as u64));
        assert_eq!(owned.max_ns(), all[all.len() - 1]);
        assert_eq!(loaded.max_ns(), Bucket::of(all[all.len() - 1]).last_ns());
        for quantile in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let rank = ((quantile * all.len() as f64).ceil() as usize).max(1);
            let (ns, last) = (all[rank - 1], Bucket::of(all[rank - 1]).last_ns());
            assert_eq!(owned.quantile_ns(quantile), last.min(owned.max_ns()), "{quantile} of {ns}");
            assert_eq!(loaded.quantile_ns(quantile), last, "{quantile} of {ns}");
        }
        for exponent in 0..64 {
            let below = all.iter().filter(|&&ns| ns < 1 << exponent).count() as u64;
            assert_eq!(
                (owned.below_power_of_two(exponent), loaded.below_power_of_two(exponent)),
                (below, below)
            );
        }
        let sum: f64 = all.iter().map(|&ns| ns as f64).sum();
        assert!((loaded.sum_ns() - sum).abs() <= sum / 15.0, "{} of {sum}", loaded.sum_ns());
        shared.reset();
        assert!(shared.load().is_none());
    }
}

#[test]
fn threads_count_together() {
    let shared = SharedHistogram::default();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10_000).for_each(|_| shared.add(Bucket::of(1000), 2)));
        }
    });
    let loaded = shared.load().expect("some were counted");
    assert_eq!((loaded.count(), loaded.below_power_of_two(10)), (80_000, 80_000));
}
