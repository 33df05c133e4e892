//! The page of measurements, and files that cannot be true.

use serde_json::{Value, json};
use sws_benchmarks::measured::{Measured, files, page};

#[test]
fn page_is_what_the_files_give() {
    let path = files().join("../../docs/measured.md");
    let written = std::fs::read_to_string(path).unwrap();
    assert!(page(&files()).unwrap() == written, "run `sws-bench measured > docs/measured.md`");
}

/// A file that may be true.
fn honest() -> Value {
    let round = |start: &str| {
        json!({
            "round": 1, "start": start, "ram": "8GiB", "ram_bytes": 8u64 << 30, "threads": 2, "load_seconds": 0.5,
            "first_token_seconds": 2.5, "tokens_per_second": 5.0, "bytes_per_token": 2e8,
            "disk_gb_per_second": 1.1, "hit_rate": 0.7, "peak_rss_bytes": 7u64 << 30, "others_share": 0.02,
        })
    };
    json!({
        "format": "sws-bench-1", "version": "0.1.0",
        "model": {"model_type": "qwen3_moe", "fingerprint": "00ff", "encoding": null, "weight_bytes": 18u64 << 30},
        "machine": {
            "processor": "AMD Ryzen 5 7430U with Radeon Graphics", "system": "linux x86_64", "tier": "avx2",
            "measured": {
                "ram_bytes": 16u64 << 30, "free_bytes": null, "threads": 12, "disk_bytes_per_second": 3e9,
                "memory_bytes_per_second": 3e10, "others_share": null,
            },
        },
        "prompt_tokens": 128, "new_tokens": 2, "rounds": [round("cold"), round("warm")],
        "certificate": {"tokens": [1, 2], "steps": []},
    })
}

fn refusal(board: &Value) -> String {
    Measured::parse(board.to_string().as_bytes()).expect_err("it is refused")
}

#[test]
fn a_file_is_a_row_for_each_budget() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("laptop.json"), honest().to_string()).unwrap();
    let page = page(temp.path()).unwrap();
    let row = page.lines().last().unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    assert_eq!(
        cells[2..14],
        [
            "AMD Ryzen 5 7430U with Radeon Graphics, avx2, 2",
            "3.0, 30",
            "qwen3_moe, in place, 18.00",
            "8.00",
            "5.0",
            "5.0",
            "2.5",
            "200",
            "37 %",
            "70 %",
            "7.00",
            "2 %"
        ]
    );
}

#[test]
fn numbers_that_cannot_be_are_refused_by_name() {
    let cases = [
        ("/format", json!("sws-bench-9"), "format"),
        ("/model/model_type", json!("a|b"), "model_type"),
        ("/model/encoding", json!("[x](http://y)"), "encoding"),
        ("/machine/processor", json!("x".repeat(81)), "processor"),
        ("/machine/processor", json!("a\nb"), "processor"),
        ("/model/weight_bytes", json!(1), "weight_bytes"),
        ("/machine/measured/ram_bytes", json!(u64::MAX), "ram_bytes"),
        ("/machine/measured/free_bytes", json!(17u64 << 30), "free_bytes"),
        ("/machine/measured/threads", json!(0), "threads"),
        ("/machine/measured/disk_bytes_per_second", json!(1e300), "disk_bytes_per_second"),
        ("/new_tokens", json!(0), "new_tokens"),
        ("/certificate", json!({"tokens": [1], "steps": []}), "certificate"),
        ("/certificate", json!(7), "certificate"),
        ("/rounds", json!([]), "rounds"),
        ("/rounds/0/start", json!("warm"), "cold"),
        ("/rounds/1/start", json!("hot"), "start"),
        ("/rounds/1/tokens_per_second", json!(1e9), "tokens_per_second"),
        ("/rounds/1/tokens_per_second", json!(50.0), "arrive"),
        ("/rounds/1/first_token_seconds", json!(-1.0), "first_token_seconds"),
        ("/rounds/1/hit_rate", json!(1.5), "hit_rate"),
        ("/rounds/1/peak_rss_bytes", json!(9u64 << 30), "peak_rss_bytes"),
        // Of another type, and missing.
        ("/rounds/1/threads", json!("2"), "string"),
        ("/rounds/1/ram_bytes", json!(-1), "-1"),
        ("/machine/measured", json!([]), "invalid"),
        ("/model", json!({}), "model_type"),
    ];
    assert!(Measured::parse(honest().to_string().as_bytes()).is_ok());
    for (place, value, named) in cases {
        let mut board = honest();
        *board.pointer_mut(place).unwrap() = value;
        let why = refusal(&board);
        assert!(why.contains(named) && !why.contains('\n'), "{place}: {why}");
    }
    let mut more = honest();
    more["host"] = json!("mine");
    assert!(refusal(&more).contains("host"));
    let keys: Vec<String> = honest().as_object().unwrap().keys().cloned().collect();
    for key in keys {
        let mut less = honest();
        less.as_object_mut().unwrap().remove(&key);
        assert!(refusal(&less).contains(&key), "{key}");
    }
}

#[test]
fn a_refused_file_is_named() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("mine.json"), "{}").unwrap();
    let why = page(temp.path()).unwrap_err().to_string();
    assert!(why.contains("mine.json") && why.contains("sws bench --out"), "{why}");
    std::fs::rename(temp.path().join("mine.json"), temp.path().join("a b.json")).unwrap();
    assert!(page(temp.path()).unwrap_err().to_string().contains("rename it"));
}
