#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pumice_fuzz::targets::segment::records(input));
