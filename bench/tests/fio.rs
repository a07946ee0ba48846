//! fio's JSON, shortened from a real answer.

use pumice_compare::fio::parse;

#[test]
fn operations_bytes_and_percentiles_come_from_the_busier_side() {
    let json = br#"fio: note
    {"jobs":[{"job_runtime":2000,"usr_cpu":10.0,"sys_cpu":30.0,
      "read":{"total_ios":900,"io_bytes":7372800,"runtime":2000,
        "clat_ns":{"max":5000000,"percentile":{"50.000000":100000,"99.000000":400000,"99.900000":900000}}},
      "write":{"total_ios":100,"io_bytes":819200,"runtime":2000,"clat_ns":{"max":1}}}]}"#;
    let found = parse(json).expect("it is fio's");
    assert_eq!((found.ops, found.user_bytes), (1000, 8_192_000));
    assert_eq!((found.seconds, found.ops_per_second()), (2.0, 500.0));
    assert_eq!((found.p50_us, found.p999_us, found.max_us), (100.0, 900.0, 5000.0));
    assert!((found.cpu_seconds - 0.8).abs() < 1e-9);
}
