//! Downloads that meet damage, other families, or another command.

use std::time::Duration;

use safetensors::Dtype;
use sws_format::Clock;
use sws_testing::hub::Fault;

use crate::checkpoints::tiny;
use crate::full_disk::Disk;
use crate::goldens::{copy, golden_dir};
use crate::pull::{ID, User};
use crate::sws::{Outcome, assert_same_tree, command, sws};
use crate::terminal::{Terminal, ended};

#[test]
fn a_damaged_file_of_the_cache_is_named() {
    let temp = tempfile::tempdir().unwrap();
    tiny("mixtral", Dtype::BF16, 2).write(temp.path(), 1);
    let user = User::of(temp.path());
    user.sws(&[&"pull", &ID, &"--keep"]).succeeded();
    user.sws(&[&"rm", &format!("{ID}:bf12"), &"--yes"]).succeeded();
    let snapshots = user.at("huggingface/hub/models--own--tiny-model/snapshots");
    let snapshot = snapshots.read_dir().unwrap().next().unwrap().unwrap().path();
    let blob = snapshot.join("model.safetensors").canonicalize().unwrap();
    let whole = std::fs::read(&blob).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2 + 1;
    damaged[middle] ^= 1;
    std::fs::write(&blob, &damaged).unwrap();
    let name = blob.file_name().unwrap().to_str().unwrap();
    for _ in 0..2 {
        user.sws(&[&"pull", &ID]).refused(2, &[name, "damaged", "remove it"]);
    }
    std::fs::remove_file(&blob).unwrap();
    user.sws(&[&"pull", &ID]).succeeded();
    user.sws(&[&"verify", &ID]).succeeded();
}

#[test]
fn a_family_that_is_not_supported_is_refused_before_its_weights() {
    let temp = tempfile::tempdir().unwrap();
    tiny("mixtral", Dtype::BF16, 2).write(temp.path(), 1);
    let config = r#"{"model_type": "unheard_of", "num_hidden_layers": 1}"#;
    std::fs::write(temp.path().join("config.json"), config).unwrap();
    let user = User::of(temp.path());
    for more in ["--as=q8", "--keep"] {
        user.sws(&[&"pull", &ID, &more]).refused(2, &[ID, "unheard_of"]);
    }
    assert!(user.hub.requests("model.safetensors").is_empty());
    assert!(!user.at("models").exists());
    // As published, it may be for other programs.
    user.sws(&[&"pull", &ID, &"--as=stored"]).succeeded();
}

#[test]
fn a_model_is_not_removed_while_it_is_downloaded() {
    let temp = tempfile::tempdir().unwrap();
    tiny("mixtral", Dtype::BF16, 2).write(temp.path(), 1);
    for keep in [false, true] {
        let user = User::of(temp.path());
        user.hub.fault("model.safetensors", Fault::Silent(10_000), 99);
        let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"pull", &ID];
        args.extend(keep.then_some(&"--keep" as &dyn AsRef<std::ffi::OsStr>));
        let mut pull = user.command(&args).spawn().unwrap();
        let begun = match keep {
            true => user.at("huggingface/hub/.locks/models--own--tiny-model"),
            false => user.at("models/own--tiny-model/bf12.pull/pull.json"),
        };
        for _ in 0..600 {
            let locks = begun.read_dir().into_iter().flatten().count();
            if begun.is_file() || locks > 0 && !user.hub.requests("model.safetensors").is_empty() {
                break;
            }
            Clock::real().sleep(Duration::from_millis(50));
        }
        user.sws(&[&"rm", &ID, &"--yes"]).refused(2, &["being written"]);
        pull.kill().unwrap();
        pull.wait().unwrap();
        user.sws(&[&"rm", &ID, &"--yes"]).succeeded();
    }
}

#[test]
fn an_interrupted_download_says_how_it_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    tiny("mixtral", Dtype::BF16, 2).write(temp.path(), 1);
    let user = User::of(temp.path());
    user.hub.fault("model.safetensors", Fault::Silent(10_000), 99);
    let terminal = Terminal::of(80, 24);
    let mut pull = user.command(&[&"pull", &format!("{ID}:q8")]);
    let child = terminal.start_with_messages(&mut pull);
    let shown = terminal.until("headers");
    assert!(!shown.contains("pulling"), "{shown:?}");
    let listed = user.sws(&[&"list"]).succeeded().stdout;
    assert!(listed.contains(&format!("`sws pull {ID}:q8` continues it")), "{listed}");
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let shown = terminal.until("goes on where it stopped");
    assert!(shown.contains("\r\u{1b}[2Ksws: interrupted"), "the bar is erased: {shown:?}");
    assert_eq!(ended(child).code(), Some(130));

    user.hub.state().faults.clear();
    user.sws(&[&"pull", &format!("{ID}:q8")]).succeeded();
    user.sws(&[&"verify", &format!("{ID}:q8")]).succeeded();
}

/// Headers and samples come before the files, and have no hash of their own.
#[test]
fn a_damaged_header_comes_again() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    let expected = temp.path().join("expected");
    tiny("qwen2_moe", Dtype::BF16, 3).write(&dir, 1);
    sws(&[&"shard", &dir, &"--out", &expected]).succeeded();
    for (from, times) in [(0, 1), (1, 1), (0, 9999), (1, 9999)] {
        let user = User::of(&dir);
        user.hub.fault("model.safetensors", Fault::WrongFrom(from), times);
        let pulled = user.sws(&[&"pull", &ID]);
        if times > 1 {
            assert!(!pulled.stderr.contains("bf12.pull"), "{pulled:?}");
            pulled.refused(2, &["model.safetensors", ID]);
            user.hub.state().faults.clear();
            user.sws(&[&"pull", &ID]).succeeded();
        } else {
            pulled.succeeded();
        }
        assert_same_tree(&expected, &user.shards());
    }
}

#[test]
fn a_download_says_at_once_that_the_hub_is_asked() {
    let temp = tempfile::tempdir().unwrap();
    tiny("mixtral", Dtype::BF16, 2).write(temp.path(), 1);
    let user = User::of(temp.path());
    user.hub.fault("", Fault::Status(503, "", "1"), 1);
    let terminal = Terminal::of(80, 24);
    let child = terminal.start_with_messages(&mut user.command(&[&"pull", &ID]));
    terminal.until(&format!("sws: asking the hub for `{ID}`"));
    assert!(ended(child).success());
}

#[test]
fn small_files_with_other_bytes_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    tiny("mixtral", Dtype::BF16, 2).write(temp.path(), 1);
    let user = User::of(temp.path());
    for (form, times) in [("--as=bf12", 99), ("--as=stored", 99), ("--as=bf12", 1)] {
        user.hub.state().faults.clear();
        user.hub.fault("config.json", Fault::WrongBytes, times);
        let outcome = user.sws(&[&"pull", &ID, &form]);
        match times {
            1 => outcome.succeeded(),
            _ => outcome.refused(2, &["config.json", "try again"]),
        };
    }
    user.sws(&[&"verify", &ID]).succeeded();
}

#[test]
fn models_are_listed_while_another_file_arrives() {
    let temp = tempfile::tempdir().unwrap();
    let file = sws_testing::gguf::converted(&golden_dir("qwen2_moe")).unwrap();
    file.write(&temp.path().join("Tiny-BF16.gguf"));
    let user = User::of(temp.path());
    user.sws(&[&"pull", &ID]).succeeded();
    let blobs = user.at("huggingface/hub/models--own--tiny-model/blobs");
    std::fs::write(blobs.join(format!("{}.incomplete", "1".repeat(64))), "begun").unwrap();
    let listed = user.sws(&[&"list"]).succeeded().stdout;
    assert!(listed.contains("Tiny-BF16") && !listed.contains("incomplete"), "{listed}");
    assert!(listed.lines().all(|line| line.chars().count() <= 80), "{listed}");
}

#[test]
fn an_encoding_for_which_the_library_is_closed_is_still_made() {
    let temp = tempfile::tempdir().unwrap();
    tiny("mixtral", Dtype::BF16, 2).write(temp.path(), 1);
    let user = User::of(temp.path());
    let out = user.at("out");
    let mut pull = user.command(&[&"pull", &ID, &"--out", &out]);
    let outcome = Outcome::of(pull.env("SWS_MODELS", "/proc/nonesuch").output().unwrap());
    let outcome = outcome.succeeded();
    assert!(outcome.stderr.contains("will not find these shards"), "{outcome:?}");
    assert!(outcome.stdout.contains(&format!("sws run {}", out.display())), "{outcome:?}");
    sws(&[&"verify", &out]).succeeded();
}

#[test]
fn logs_have_requests_and_nothing_private() {
    let temp = tempfile::tempdir().unwrap();
    copy("qwen2_moe", temp.path());
    let user = User::of(temp.path());
    let logged = |words: &[&str], level: &str| {
        let words: Vec<&dyn AsRef<std::ffi::OsStr>> = words.iter().map(|word| word as _).collect();
        let mut command = user.command(&words);
        command.env("HF_TOKEN", "hf_secret").env("SWS_LOG", level);
        Outcome::of(command.output().unwrap()).succeeded().stderr
    };
    assert!(!logged(&["pull", ID, "--as=q4"], "").contains("info: "));
    let pulled = logged(&["pull", ID, "-vv"], "");
    for words in ["info: `model.safetensors` has ", "debug: GET http://127.0.0.1:", ": 206"] {
        assert!(pulled.contains(words), "no {words:?} in {pulled}");
    }
    let run = ["run", ID, "-p", "fox", "-n1", "-v"];
    let run = logged(&run, "");
    for words in ["info: `own/tiny-model` has shards", "info: a budget of ", "info: files are read"]
    {
        assert!(run.contains(words), "no {words:?} in {run}");
    }
    assert!(!run.contains("debug: ") && !run.contains(user.at("").to_str().unwrap()), "{run}");
    for log in [pulled, run, logged(&["run", ID, "-p", "fox", "-n1"], "trace")] {
        assert!(!log.contains("hf_secret") && !log.contains("fox"), "{log}");
    }
}

#[test]
fn a_mistyped_path_keeps_its_name_where_the_hub_does_not_help() {
    let temp = tempfile::tempdir().unwrap();
    tiny("mixtral", Dtype::BF16, 2).write(temp.path(), 1);
    let user = User::of(temp.path());
    let typed = "shards/tales-moe";
    let not_here = format!("`{typed}` is neither a path nor a model on this machine");
    // A port on which nothing listens any more.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = |words: &[&str]| {
        let words: Vec<&dyn AsRef<std::ffi::OsStr>> = words.iter().map(|word| word as _).collect();
        let mut command = user.command(&words);
        command.env("HF_ENDPOINT", format!("http://{port}"));
        command
    };
    let pull = format!("sws pull {typed}");
    for command in ["plan", "inspect"] {
        let outcome = Outcome::of(away(&[command, typed]).output().unwrap());
        assert!(!outcome.stderr.contains("asking"), "{outcome:?}");
        outcome.refused(2, &[&not_here, &pull, "the hub cannot be reached"]);
    }
    let terminal = Terminal::of(400, 24);
    let child = terminal.start_with_messages(&mut away(&["run", typed, "-pHello"]));
    let shown = terminal.until("the hub cannot be reached");
    for words in [&format!("asking the hub for `{typed}`"), &not_here, &pull] {
        assert!(shown.contains(words), "no {words:?} in {shown:?}");
    }
    assert_eq!(ended(child).code(), Some(2));

    user.sws(&[&"plan", &typed]).refused(2, &[&not_here, "the hub has none of that name"]);
    // A name with an error in it is asked for once.
    user.hub.state().requests.clear();
    user.hub.fault("", Fault::Status(503, "", ""), 99);
    user.sws(&[&"plan", &ID]).refused(2, &["503"]);
    assert_eq!(user.hub.requests("").len(), 1);
    // A hub that asks to wait is waited for.
    user.hub.state().faults.clear();
    user.hub.fault("", Fault::Status(429, "", "1"), 1);
    user.hub.state().requests.clear();
    let inspected = user.sws(&[&"inspect", &ID]);
    assert!(!inspected.stderr.contains("429"), "{inspected:?}");
    assert!(user.hub.requests("").len() > 1, "{inspected:?}");
}

#[test]
fn a_download_without_room_is_not_offered() {
    let temp = tempfile::tempdir().unwrap();
    copy("qwen2_moe", &temp.path().join("in"));
    let user = User::of(&temp.path().join("in"));
    let Some(disk) = Disk::mount(&user.at("disk"), 64) else { return };
    let terminal = Terminal::of(400, 24);
    let mut run = user.command(&[&"run", &ID, &"-n1", &"--tokens=1"]);
    let child = terminal.start_with_messages(run.env("SWS_MODELS", &disk.0));
    let shown = terminal.until("make room");
    assert!(!shown.contains("[y/N]") && shown.contains(" free; "), "{shown:?}");
    assert_eq!(ended(child).code(), Some(2));
    assert!(user.hub.requests("model.safetensors").is_empty());

    // Neither is what is left of one that was begun.
    let begun = disk.0.join("own--tiny-model/bf12.pull");
    std::fs::create_dir_all(&begun).unwrap();
    let commit = user.hub.state().commit.clone();
    let record = serde_json::json!({ "model": ID, "commit": commit }).to_string();
    std::fs::write(begun.join("pull.json"), record).unwrap();
    let terminal = Terminal::of(400, 24);
    let child = terminal.start_with_messages(run.env("SWS_MODELS", &disk.0));
    let shown = terminal.until("make room");
    assert!(!shown.contains("[y/N]"), "{shown:?}");
    assert_eq!(ended(child).code(), Some(2));
    // Nothing of a download that was refused is left.
    std::fs::remove_file(begun.join("pull.json")).unwrap();
    let mut pull = user.command(&[&"pull", &ID]);
    let refused = Outcome::of(pull.env("SWS_MODELS", &disk.0).output().unwrap());
    refused.refused(2, &[ID, "make room", "--out DIR"]);
    assert!(user.hub.requests("model.safetensors").is_empty() && !begun.exists());
}

#[test]
fn a_model_made_for_conversation_is_followed_by_chat() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    copy("qwen3_moe", &dir);
    let user = User::of(&dir);
    let last = |form: &str| {
        let pulled = user.sws(&[&"pull", &ID, &form]).succeeded().stdout;
        pulled.lines().last().map(str::to_owned)
    };
    assert_eq!(last("--as=q8"), Some(format!("sws run {ID}")));
    user.sws(&[&"rm", &ID, &"--yes"]).succeeded();
    let template = b"{% for message in messages %}{{ message.content }}{% endfor %}".to_vec();
    user.hub.state().files.insert("chat_template.jinja".to_owned(), template);
    assert_eq!(last("--as=q8"), Some(format!("sws chat {ID}")));
}

#[test]
fn a_gguf_file_is_a_source_and_its_directory_is_not() {
    let temp = tempfile::tempdir().unwrap();
    let file = sws_testing::gguf::converted(&golden_dir("qwen2_moe")).unwrap();
    file.write(&temp.path().join("Tiny-BF16.gguf"));
    let here = |args: &[&str]| {
        let args: Vec<&dyn AsRef<std::ffi::OsStr>> = args.iter().map(|arg| arg as _).collect();
        Outcome::of(command(&args).current_dir(temp.path()).output().unwrap())
    };
    here(&["shard", "Tiny-BF16.gguf", "--out", "."]).refused(2, &["holds other files"]);
    here(&["shard", "Tiny-BF16.gguf", "--out", "shards"]).succeeded();
    here(&["verify", "shards"]).succeeded();
    let planned = here(&["plan", "Tiny-BF16.gguf", "--no-probe"]).succeeded().stdout;
    assert!(planned.contains("\nTiny-BF16.gguf: "), "{planned}");

    let dir = temp.path().join("in");
    copy("qwen2_moe", &dir);
    let user = User::of(&dir);
    user.sws(&[&"pull", &ID, &"--as=stored"]).succeeded();
    let planned = user.sws(&[&"plan", &ID, &"--no-probe"]).succeeded().stdout;
    assert!(planned.contains(&format!("\n{ID}: ")), "{planned}");
}

#[test]
fn variables_that_name_no_place_for_models_are_named() {
    let temp = tempfile::tempdir().unwrap();
    tiny("mixtral", Dtype::BF16, 2).write(temp.path(), 1);
    let user = User::of(temp.path());
    for (variable, earlier) in [
        ("SWS_MODELS", "HF_HUB_CACHE"),
        ("XDG_DATA_HOME", "SWS_MODELS"),
        ("HF_HUB_CACHE", "HF_HOME"),
        ("HF_HOME", "HF_HUB_CACHE"),
    ] {
        for words in [&["run", ID, "-n1", "-p", "x"][..], &["pull", ID], &["list"], &["rm", ID]] {
            let words: Vec<&dyn AsRef<std::ffi::OsStr>> = words.iter().map(|w| w as _).collect();
            let mut command = user.command(&words);
            command.env_remove(earlier).env(variable, "/etc/passwd");
            let outcome = Outcome::of(command.output().unwrap());
            match words.len() {
                // It lists what is elsewhere.
                1 => {
                    let listed = outcome.succeeded();
                    assert!(listed.stderr.contains(&format!("check {variable}")), "{listed:?}");
                }
                _ => drop(outcome.refused(2, &[variable, "`/etc/passwd`", "not a directory"])),
            }
        }
    }
    let mut pull = user.command(&[&"pull", &ID]);
    let outcome = Outcome::of(pull.env("HF_TOKEN_PATH", "/nonesuch/token").output().unwrap());
    outcome.refused(2, &["HF_TOKEN_PATH", "cannot be read"]);
}

#[test]
fn checkpoints_and_shards_are_named_apart() {
    let temp = tempfile::tempdir().unwrap();
    tiny("mixtral", Dtype::BF16, 2).write(temp.path(), 1);
    let user = User::of(temp.path());
    user.sws(&[&"pull", &ID]).succeeded();
    // Without a checkpoint there are no other shards.
    let refused = user.sws(&[&"shard", &ID, &"--as", &"q4"]);
    refused.refused(2, &["only shards", &format!("sws pull {ID} --as ENCODING")]);
    let pulled = user.sws(&[&"pull", &ID, &"--keep", &"--as", &"bf16"]).succeeded().stdout;
    let last = pulled.lines().last().map(str::to_owned);
    assert_eq!(last, Some(format!("sws run {ID}:bf16")));
    user.sws(&[&"shard", &ID, &"--as", &"q4"]).succeeded();
    let forms = || {
        let listed = user.sws(&[&"list", &"--json"]).succeeded().stdout;
        let rows: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
        rows.iter().map(|row| row["form"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(forms(), ["bf12", "bf16", "checkpoint", "q4"]);
    // Each row can be removed by its form.
    for left in [&["bf12", "bf16", "q4"][..], &["bf16", "q4"]] {
        let form = if left.len() == 3 { "checkpoint" } else { "bf12" };
        user.sws(&[&"rm", &format!("{ID}:{form}"), &"--yes"]).succeeded();
        assert_eq!(forms(), left);
    }
    user.sws(&[&"rm", &format!("{ID}:checkpoint"), &"--yes"]).refused(2, &[ID, "sws list"]);
}
