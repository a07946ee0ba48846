//! Rates of the BCH codes on one core: `cargo run --release -p pumice-flash --example bch`. MB/s of data, by flipped
//! bits per codeword.

use pumice_base::rng::Rng;
use pumice_flash::bch::Bch;
use pumice_reactor::{block_on, now};

const CODEWORDS: usize = 1024;

fn main() {
    block_on(async {
        println!(
            "{:>10} {:>4} {:>8} {:>10} {:>12} {:>12}",
            "data B", "t", "parity B", "encode", "flipped", "decode"
        );
        for (data_bytes, t) in [(512, 8), (1024, 8), (1024, 30), (1024, 60), (2048, 40)] {
            let code = match Bch::new(data_bytes, t) {
                Ok(code) => code,
                Err(error) => panic!("{error}"),
            };
            let mut rng = Rng::from_seed(1);
            let mut data = vec![0; CODEWORDS * data_bytes];
            rng.fill(&mut data);
            let mut parity = vec![0; CODEWORDS * code.parity_bytes()];
            let mut encode_s = f64::MAX;
            for _ in 0..5 {
                let start = now();
                for (word, out) in data.chunks(data_bytes).zip(parity.chunks_mut(code.parity_bytes())) {
                    code.encode(word, out);
                }
                encode_s = encode_s.min(start.elapsed().as_secs_f64());
            }
            let rate = |seconds: f64| data.len() as f64 / seconds / 1e6;
            for (row, flipped) in [0, 1, 2, 4, t / 2, t].into_iter().enumerate() {
                let mut decode_s = f64::MAX;
                for _ in 0..3 {
                    let (mut read, mut beside) = (data.clone(), parity.clone());
                    for word in read.chunks_mut(data_bytes) {
                        // Spread, so that no bit is flipped twice.
                        let stride = data_bytes * 8 / flipped.max(1);
                        for index in 0..flipped {
                            let bit = index * stride + rng.below(stride as u64) as usize;
                            word[bit / 8] ^= 1 << (bit % 8);
                        }
                    }
                    let start = now();
                    for (word, out) in read.chunks_mut(data_bytes).zip(beside.chunks_mut(code.parity_bytes()))
                    {
                        assert_eq!(code.decode(word, out), Ok(flipped));
                    }
                    decode_s = decode_s.min(start.elapsed().as_secs_f64());
                    assert!(read == data);
                }
                if row == 0 {
                    print!("{data_bytes:>10} {t:>4} {:>8} {:>7.0} MB/s", code.parity_bytes(), rate(encode_s));
                } else {
                    print!("{:>36}", "");
                }
                println!(" {flipped:>10} {:>7.0} MB/s", rate(decode_s));
            }
        }
    });
}
