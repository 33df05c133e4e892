//! `sws inspect` and `sws plan` of models without weights, and `sws doctor`.

use serde_json::Value;
use sws_testing::tales;

use crate::goldens::{copy, golden_dir};
use crate::sws::{Outcome, command, sws};

fn published(name: &str) -> std::path::PathBuf {
    golden_dir("../../configs").join(format!("{name}.json"))
}

#[test]
fn a_configuration_alone_is_described_and_planned() {
    let path = published("qwen3-235b-a22b");
    for command in ["inspect", "plan"] {
        let text = sws(&[&command, &path]).succeeded().stdout;
        let position = "376.00 KiB a position";
        for word in ["qwen3_moe: 94 layers", "128 experts", "235.1 B", "bf12", " 16 GiB ", position]
        {
            assert!(text.contains(word), "{command}: {word} in {text}");
        }
    }
    let text = sws(&[&"plan", &path, &"--ram", &"24GiB"]).succeeded().stdout;
    assert!(
        text.starts_with("runs in bf1")
            && text.contains(" within 24.00 GiB")
            && text.contains(" 24 GiB "),
        "{text}"
    );
    let plan = |threads: &str| -> Value {
        let args: [&dyn AsRef<std::ffi::OsStr>; 7] =
            [&"plan", &path, &"--ram", &"24GiB", &"--json", &"--threads", &threads];
        serde_json::from_str(&sws(&args).succeeded().stdout).unwrap()
    };
    let json = plan("2");
    let more = plan("200");
    // Threads take memory.
    let smallest = |plan: &Value| plan["formats"][0]["smallest_budget"].as_u64().unwrap();
    assert!(smallest(&json) < smallest(&more), "{json} {more}");
    assert_eq!((&json["supported"], &json["experts"]), (&true.into(), &128.into()));
    assert_eq!(json["asked"], 24u64 << 30);
    // Two times four heads of 128 numbers in f32, in each layer.
    assert_eq!(json["kv_bytes_per_position"], 94 * 2 * 4 * 128 * 4);
    assert_eq!(json["budgets"].as_array().unwrap().len(), 4, "{json}");
    for format in json["formats"].as_array().unwrap() {
        let reads = format["read_bytes_per_token"].as_array().unwrap();
        let reads: Vec<u64> = reads.iter().map(|read| read.as_u64().unwrap()).collect();
        assert!(reads.is_sorted_by(|a, b| a >= b), "{format}");
    }
}

/// A checkpoint has the formats of its configuration besides its own, and shards have none.
#[test]
fn formats_of_a_checkpoint_are_planned_beside_it() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    let shards = temp.path().join("shards");
    copy("qwen3_moe", &dir);
    sws(&[&"shard", &dir, &"--out", &shards]).succeeded();
    let plan = |path: &std::path::Path| -> Value {
        let args: [&dyn AsRef<std::ffi::OsStr>; 6] =
            [&"plan", &path, &"--json", &"--no-probe", &"--ram", &"2GiB"];
        serde_json::from_str(&sws(&args).succeeded().stdout).unwrap()
    };
    let checkpoint = plan(&dir);
    let outline = plan(&dir.join("config.json"));
    let names = |plan: &Value| -> Vec<String> {
        let formats = plan["formats"].as_array().unwrap().iter();
        formats.map(|row| row["format"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&checkpoint), ["bf12", "bf11", "q8", "q4"]);
    assert_eq!(names(&outline)[1..], names(&checkpoint));
    assert_eq!(checkpoint["formats"][0], outline["formats"][1]);
    assert_eq!(checkpoint["formats_at"], outline["budgets"]);
    assert_eq!(plan(&shards)["formats"], Value::Null);
    let text = sws(&[&"plan", &dir]).succeeded().stdout;
    for words in ["`sws shard` makes other formats", "tokens per second by --ram", "bf12 ", "q4 "] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

/// The same model with and without its weights has the same sizes.
#[test]
fn a_directory_without_weights_has_the_sizes_of_one_with() {
    let temp = tempfile::tempdir().unwrap();
    let with = temp.path().join("with");
    let without = temp.path().join("without");
    copy("qwen3_moe", &with);
    std::fs::create_dir(&without).unwrap();
    std::fs::copy(with.join("config.json"), without.join("config.json")).unwrap();
    let inspect = |dir: &std::path::Path| -> Value {
        serde_json::from_str(&sws(&[&"inspect", &dir, &"--json"]).succeeded().stdout).unwrap()
    };
    let with = inspect(&with);
    let without = inspect(&without);
    assert_eq!(without["formats"][0]["format"], "bf16");
    assert_eq!(with["stored_bytes"], without["formats"][0]["bytes"]);
}

/// Some configurations are published without the names of what is not quantised.
#[test]
fn a_format_that_is_not_known_is_named_as_the_reason() {
    let path = golden_dir("../../configs").join("kimi-k3.json");
    for command in ["inspect", "plan"] {
        let text = sws(&[&command, &path]).succeeded().stdout;
        assert!(text.contains("sizes and speeds are not known before"), "{command}: {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}

#[test]
fn what_is_not_supported_is_described() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("config.json");
    let config = r#"{"model_type": "nonesuch", "num_hidden_layers": 7, "num_experts": 9}"#;
    std::fs::write(&path, config).unwrap();
    for path in [temp.path(), &path] {
        for command in ["inspect", "plan"] {
            let text = sws(&[&command, &path]).succeeded().stdout;
            for word in ["nonesuch: 7 layers", "9 experts", "not supported yet: "] {
                assert!(text.contains(word), "{command}: {word} in {text}");
            }
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }
    sws(&[&"run", &temp.path(), &"--tokens", &"1"])
        .refused(2, &["`nonesuch`", "docs/supported.md"]);
    let no_layers = r#"{"model_type": "qwen3_moe", "hidden_size": 8}"#;
    for bad in ["{", "[]", "{}", r#"{"model_type": 1}"#, no_layers] {
        std::fs::write(&path, bad).unwrap();
        for command in ["plan", "inspect"] {
            sws(&[&command, &path]).refused(2, &["config.json"]);
        }
    }
    sws(&[&"inspect", &temp.path()]).refused(2, &["config.json", "num_hidden_layers"]);
}

/// A blob of the Hugging Face cache is named by its hash.
#[test]
fn a_configuration_is_known_by_its_contents() {
    let temp = tempfile::tempdir().unwrap();
    let blob = temp.path().join("0d5fa4");
    std::fs::copy(published("qwen3-30b-a3b"), &blob).unwrap();
    let text = sws(&[&"inspect", &blob]).succeeded().stdout;
    assert!(text.contains("qwen3_moe: 48 layers"), "{text}");
    std::fs::write(&blob, "tensors").unwrap();
    sws(&[&"inspect", &blob]).refused(2, &["0d5fa4", "not a GGUF"]);
}

/// Weights that are published quantised stay as they are in shards, except that bf11 packs fp8.
#[test]
fn formats_are_those_that_can_be_made() {
    let models = [
        ("gpt-oss-20b", "mxfp4", "mxfp4"),
        ("kimi-k2-thinking", "int4", "int4"),
        ("deepseek-v3", "fp8", "fp7"),
        ("inkling-2-small", "mxfp8", "mxfp7"),
    ];
    for (name, quantised, packed) in models {
        let json = sws(&[&"inspect", &published(name), &"--json"]).succeeded().stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        let formats = json["formats"].as_array().unwrap().iter();
        let names: Vec<&str> = formats.map(|row| row["format"].as_str().unwrap()).collect();
        let shards = ["bf12", "bf11", "q8", "q4"].map(|plain| {
            let kept = if plain == "bf11" { packed } else { quantised };
            format!("{kept} and {plain}")
        });
        assert_eq!(names[0], format!("{quantised}, as published"));
        assert_eq!(names[1..], shards);
    }
}

/// Models that fit in memory are made in bf12, and shards that are there are found again.
#[test]
fn shards_are_made_in_the_encoding_of_the_plan() {
    let temp = tempfile::tempdir().unwrap();
    let dir = golden_dir("qwen3_moe");
    let shard = |out: &str, options: &[&str]| {
        let out = temp.path().join(out);
        let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"shard", &dir, &"--out", &out];
        args.push(&"--json");
        options.iter().for_each(|option| args.push(option));
        sws(&args)
    };
    let json = |outcome: &Outcome| -> Value { serde_json::from_str(&outcome.stdout).unwrap() };
    let made = shard("auto", &["--encoding", "auto", "--ram", "4GiB"]).succeeded();
    assert!(made.stderr.contains("sws: bf12, as all of it fits in 4.00 GiB\n"), "{made:?}");
    assert_eq!(json(&made)["encoding"], "bf12");
    // The plan of the checkpoint ends with what would be made.
    let planned = sws(&[&"plan", &dir, &"--ram", &"4GiB"]).succeeded().stdout;
    let last = "`sws shard --encoding auto` makes bf12, as all of it fits in 4.00 GiB\n";
    assert!(planned.ends_with(last), "{planned}");
    let small = shard("small", &["--encoding", "auto", "--ram", "1MiB"]).succeeded();
    assert!(small.stderr.contains("sws: bf12, which needs "), "{small:?}");
    assert!(small.stderr.contains(" and does not run within 1.00 MiB\n"), "{small:?}");
    shard("bf11", &["--encoding", "bf11"]).succeeded();
    for (out, encoding) in [("auto", "bf12"), ("bf11", "bf11")] {
        let again = json(&shard(out, &["--encoding", "auto"]).succeeded());
        assert_eq!((&again["encoding"], &again["found"]), (&encoding.into(), &again["shards"]));
    }
    // A configuration file may have it for all commands.
    shard("q8", &["--encoding", "q8", "--ram", "4GiB"]).succeeded();
    shard("min", &["--encoding", "auto", "--ram", "min"]).refused(2, &["--ram min", "size"]);
}

/// A remedy wherever something hurts, which the exit code says, and nowhere else.
#[test]
fn the_doctor_names_a_remedy_where_something_hurts() {
    let model = tales();
    let args: [&[&dyn AsRef<std::ffi::OsStr>]; 2] =
        [&[&"doctor", &"--json"], &[&"doctor", &model, &"--json"]];
    for args in args {
        let outcome = sws(args);
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        for check in checks {
            assert_eq!(check["hurts"] == true, check["remedy"].is_string(), "{check}");
        }
        let hurts = checks.iter().any(|check| check["hurts"] == true);
        assert_eq!((outcome.code, &report["hurts"]), (Some(i32::from(hurts)), &hurts.into()));
        // Whatever the machine, its kernels have the same bits.
        let find = |name: &str| checks.iter().find(|check| check["check"] == name);
        let bits = find("bits").unwrap();
        assert_eq!(bits["hurts"], false, "{bits}");
        assert!(bits["found"].as_str().unwrap().contains("60 encodings"), "{bits}");
        let all = [
            "kernels",
            "memory",
            "control group",
            "huge pages",
            "address space",
            "locked memory",
            "open files",
            "cache",
            "direct reads",
            "disk",
            "disk, small pages",
            "reader uring",
            "reader mmap",
        ];
        assert!(all.iter().all(|name| find(name).is_some()), "{report}");
        let has_model = args.len() > 2;
        for name in ["memory for the model", "space beside the model"] {
            assert_eq!(find(name).is_some(), has_model, "{name}: {report}");
        }
        for name in ["space for models", "model read from disk"] {
            assert_eq!(find(name).is_none(), has_model, "{name}: {report}");
        }
    }
    sws(&[&"doctor", &"/nowhere"]).refused(2, &["/nowhere"]);
}

/// Weights are not all that needs memory.
#[test]
fn the_doctor_knows_from_where_nothing_is_read() {
    let model = tales();
    let report: Value = serde_json::from_str(&sws(&[&"doctor", &model, &"--json"]).stdout).unwrap();
    let is_it = |check: &&Value| check["check"] == "memory for the model";
    let check = report["checks"].as_array().unwrap().iter().find(is_it).unwrap();
    let found = check["found"].as_str().unwrap();
    let (_, size) = found.split_once("no reads of weights from about ").unwrap();
    let mib: f64 = size.strip_suffix(" MiB on").unwrap().parse().unwrap();
    let read = |mib: f64| {
        let ram = format!("{}MiB", mib as u64);
        let args: [&dyn AsRef<std::ffi::OsStr>; 6] =
            [&"plan", &model, &"--ram", &ram, &"--json", &"--no-probe"];
        let plan: Value = serde_json::from_str(&sws(&args).succeeded().stdout).unwrap();
        plan["plan"]["read_bytes_per_token"].as_u64().unwrap()
    };
    // Planned by another process, which takes a little more or less memory.
    assert_eq!(read(mib + 4.0), 0, "{found}");
    assert!(read(mib - 8.0) > 0, "{found}");
}

#[test]
fn no_line_of_a_plan_is_wider_than_a_terminal() {
    let temp = tempfile::tempdir().unwrap();
    let machine = temp.path().join("machine.json");
    let described = serde_json::json!({
        "ram_bytes": 2_199_023_255_552u64, "free_bytes": 2_147_483_648_000u64, "threads": 1024,
        "disk_bytes_per_second": 13_400_000_000.0, "memory_bytes_per_second": 410_000_000_000.0,
    });
    std::fs::write(&machine, described.to_string()).unwrap();
    // A model that is found from the working directory has a short path.
    let root = tales().join("../..");
    for (model, ram) in [("shards/tales-moe", "80%"), ("tests/goldens/qwen3_moe", "2GiB")] {
        let args: [&dyn AsRef<std::ffi::OsStr>; 7] =
            [&"plan", &model, &"--describe", &machine, &"--memory", &"--ram", &ram];
        let outcome = Outcome::of(command(&args).current_dir(&root).output().unwrap());
        let text = outcome.succeeded().stdout;
        assert!(text.contains("read at 410 GB/s;"), "{text}");
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{wide:#?}");
    }
}
