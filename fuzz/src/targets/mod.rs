//! The targets.

pub mod drive;
pub mod ftl;
pub mod kv;
pub mod kv_config;
pub mod redis;
pub mod redis_flash;
pub mod segment;
pub mod text;

use crate::Target;

/// All of them; `fuzz_targets/` holds a file for each.
pub const ALL: &[Target] = &[
    Target { name: "kv_record", seeds: kv::record_seeds, run: kv::record },
    Target { name: "kv_manifest", seeds: kv::manifest_seeds, run: kv::manifest },
    Target { name: "kv_table", seeds: kv::table_seeds, run: kv::table },
    Target { name: "kv_config", seeds: kv_config::seeds, run: kv_config::run },
    Target { name: "segment_headers", seeds: segment::header_seeds, run: segment::headers },
    Target { name: "segment_summary", seeds: segment::summary_seeds, run: segment::summaries },
    Target { name: "segment_record", seeds: segment::record_seeds, run: segment::records },
    Target { name: "segment_meta", seeds: segment::meta_seeds, run: segment::metas },
    Target { name: "redis_requests", seeds: redis::request_seeds, run: redis::requests },
    Target { name: "redis_words", seeds: redis::word_seeds, run: redis::words },
    Target { name: "ftl_layouts", seeds: ftl::seeds, run: ftl::layouts },
    Target { name: "flash_bch", seeds: ftl::bch_seeds, run: ftl::bch },
    Target { name: "drive_image", seeds: drive::seeds, run: drive::heap },
    Target { name: "ftl_image", seeds: drive::seeds, run: drive::raw },
    Target { name: "flash_emulated", seeds: drive::seeds, run: drive::emulated },
    Target { name: "redis_records", seeds: redis_flash::record_seeds, run: redis_flash::records },
    Target { name: "redis_texts", seeds: redis_flash::text_seeds, run: redis_flash::texts },
    Target { name: "text", seeds: text::seeds, run: text::run },
];

/// Splits the first `N` bytes off, zeros if there are fewer: parameters that an input chooses.
fn split<const N: usize>(input: &[u8]) -> ([u8; N], &[u8]) {
    let mut head = [0; N];
    let take = input.len().min(N);
    head[..take].copy_from_slice(&input[..take]);
    (head, &input[take..])
}
