//! The models on this machine: `sws list`, `sws rm`, what is offered where a model is missing, and the
//! cache that Python leaves.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sws_testing::hub::sha256;

use crate::goldens::{copy, golden_dir};
use crate::pull::{ID, User};
use crate::sws::Outcome;
use crate::terminal::{Terminal, ended};

/// The cache that Python's huggingface_hub left, as tests/hub.py lists it.
const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/hub-cache.txt");
const TEMPLATE: &str = "{% for message in messages %}{{ message.content }}{% endfor %}";

/// A directory with the files of a model that are published, of `tests/goldens`.
fn published(dir: &Path, files: &[&str]) -> PathBuf {
    std::fs::create_dir(dir).unwrap();
    for file in files {
        std::fs::copy(golden_dir("qwen2_moe").join(file), dir.join(file)).unwrap();
    }
    dir.to_owned()
}

/// The files and links of the cache, one in a line.
fn listing(cache: &Path) -> String {
    let mut lines = Vec::new();
    let mut ahead = vec![cache.join("models--own--tiny-model")];
    while let Some(dir) = ahead.pop() {
        for entry in dir.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(cache).unwrap().display().to_string();
            if path.is_symlink() {
                lines.push(format!("link {name} {}", path.read_link().unwrap().display()));
            } else if path.is_dir() {
                ahead.push(path);
            } else if dir.ends_with("refs") {
                lines.push(format!("text {name} {}", std::fs::read_to_string(&path).unwrap()));
            } else {
                lines.push(format!("file {name} {}", sha256(&std::fs::read(&path).unwrap())));
            }
        }
    }
    lines.sort();
    lines.join("\n") + "\n"
}

#[test]
fn caches_are_those_that_python_makes_and_reads() {
    let temp = tempfile::tempdir().unwrap();
    let files = ["config.json", "model.safetensors"];
    let dir = published(&temp.path().join("in"), &files);
    let python = std::fs::read_to_string(PYTHON).unwrap();
    let mut expected: Vec<&str> = python.lines().collect();
    expected.sort_unstable();
    let expected = expected.join("\n") + "\n";

    // Python's cache, made again from its listing.
    let user = User::of(&dir);
    let cache = user.at("huggingface/hub");
    for line in python.lines() {
        let [kind, name, rest] = line.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
        let path = cache.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match kind {
            "link" => std::os::unix::fs::symlink(rest, &path).unwrap(),
            "text" => std::fs::write(&path, rest).unwrap(),
            _ => {
                let bytes = files.map(|file| std::fs::read(dir.join(file)).unwrap());
                let found = bytes.iter().find(|bytes| sha256(bytes) == rest);
                std::fs::write(&path, found.expect("the golden changed: run tests/hub.py"))
                    .unwrap();
            }
        }
    }
    assert_eq!(listing(&cache), expected);
    let inspected = |name: &dyn AsRef<OsStr>| user.sws(&[&"inspect", name]).succeeded().stdout;
    assert_eq!(inspected(&ID), inspected(&dir));
    // Nothing is missing there.
    user.sws(&[&"pull", &ID, &"--as", &"stored"]).succeeded();
    assert!(user.hub.state().requests.iter().all(|request| request.file.is_empty()));
    assert_eq!(listing(&cache), expected);

    let user = User::of(&dir);
    user.sws(&[&"pull", &ID, &"--as", &"stored"]).succeeded();
    assert_eq!(listing(&user.at("huggingface/hub")), expected);
}

#[test]
fn models_are_listed_with_their_memory() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    copy("mixtral", &dir);
    let user = User::of(&dir);
    user.sws(&[&"pull", &ID]).succeeded();
    user.sws(&[&"pull", &format!("{ID}:q8")]).succeeded();
    user.sws(&[&"pull", &ID, &"--as", &"stored"]).succeeded();
    let json = user.sws(&[&"list", &"--json"]).succeeded().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let forms: Vec<&str> = (0..3).map(|row| json[row]["form"].as_str().unwrap()).collect();
    assert_eq!(forms, ["bf12", "checkpoint", "q8"]);
    for row in json.as_array().unwrap() {
        assert_eq!(row["model_type"], "mixtral");
        let budget = |name: &str| row[name].as_u64().unwrap_or_else(|| panic!("{row}"));
        assert!(budget("smallest_budget") <= budget("in_memory_budget"), "{row}");
        assert!(row["bytes"].as_u64().unwrap() > 0 && row["problem"].is_null(), "{row}");
        // The model runs in so much, and in no less than what is called the smallest.
        let path = match row["form"].as_str().unwrap() {
            "checkpoint" => format!("{ID}@main"),
            form => format!("{ID}:{form}"),
        };
        let ram = format!("{}", budget("in_memory_budget"));
        user.sws(&[&"plan", &path, &"--ram", &ram, &"--no-probe"]).succeeded();
    }
    // A family that is not supported is listed with the reason.
    let config = user.at("huggingface/hub/models--own--tiny-model/snapshots");
    let config = config.join("0123456789abcdef0123456789abcdef01234567/config.json");
    std::fs::write(config.canonicalize().unwrap(), r#"{"model_type":"unheard_of"}"#).unwrap();
    let listed = user.sws(&[&"list"]).succeeded().stdout;
    assert!(listed.contains("cannot be run") && listed.contains("unheard_of"), "{listed}");
}

#[test]
fn one_of_several_files_is_removed() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    std::fs::create_dir(&dir).unwrap();
    let file = sws_testing::gguf::converted(&golden_dir("qwen2_moe")).unwrap();
    for name in ["Tiny-BF16.gguf", "Tiny-Q4_K_M.gguf"] {
        // Files of equal bytes share a blob, which stays for the other.
        file.write(&dir.join(name));
    }
    let user = User::of(&dir);
    for tag in ["BF16", "Q4_K_M"] {
        user.sws(&[&"pull", &format!("{ID}:{tag}")]).succeeded();
    }
    let listed = user.sws(&[&"list"]).succeeded().stdout;
    assert!(listed.contains("Tiny-BF16") && listed.contains("Tiny-Q4_K_M"), "{listed}");
    user.sws(&[&"rm", &format!("{ID}:Q5_0"), &"--yes"]).refused(2, &["Q5_0", "sws list"]);
    user.sws(&[&"rm", &format!("{ID}:BF16")]).refused(2, &["--yes"]);
    let removed = user.sws(&[&"rm", &format!("{ID}:BF16"), &"--yes"]).succeeded();
    assert!(removed.stdout.contains("Tiny-BF16.gguf"), "{removed:?}");
    let listed = user.sws(&[&"list"]).succeeded().stdout;
    assert!(!listed.contains("Tiny-BF16") && listed.contains("Tiny-Q4_K_M"), "{listed}");
    user.sws(&[&"inspect", &format!("{ID}:Q4_K_M")]).succeeded();
    // A file of a snapshot that no branch chooses.
    let model = user.at("huggingface/hub/models--own--tiny-model");
    std::fs::create_dir(model.join("snapshots/tests")).unwrap();
    std::fs::rename(model.join("refs/main"), model.join("refs/v1")).unwrap();
    let name = format!("{ID}:Q4_K_M@v1");
    user.sws(&[&"rm", &format!("{ID}:Q4_K_M"), &"--yes"]).refused(2, &["Q4_K_M", "sws list"]);
    user.sws(&[&"rm", &format!("{ID}@v1"), &"--yes"]).refused(2, &["by revision"]);
    assert!(user.sws(&[&"list"]).succeeded().stdout.contains("Tiny-Q4_K_M@v1"));
    user.sws(&[&"inspect", &name]).succeeded();
    user.sws(&[&"rm", &name, &"--yes"]).succeeded();
    assert!(!user.sws(&[&"list"]).succeeded().stdout.contains("Q4_K_M"));
    let mut inspect = user.command(&[&"inspect", &format!("{ID}:BF16")]);
    let gone = Outcome::of(inspect.env("HF_HUB_OFFLINE", "1").output().unwrap());
    gone.refused(2, &["BF16", "sws pull"]);
}

#[test]
fn a_terminal_is_asked_whether_to_download() {
    let temp = tempfile::tempdir().unwrap();
    let dir = published(&temp.path().join("in"), &["config.json", "model.safetensors"]);
    let user = User::of(&dir);
    let run: [&dyn AsRef<OsStr>; 6] =
        [&"run", &ID, &"--tokens", &"5,9,100", &"--max-new-tokens=4", &"--json"];
    for (answer, code) in [("no\r", 2), ("\r", 2), ("yes\r", 0)] {
        let mut terminal = Terminal::open();
        let child = terminal.start_with_messages(&mut user.command(&run));
        let asked = terminal.until("[y/N]");
        assert!(asked.contains(ID) && asked.contains("KiB") && asked.contains("free"), "{asked}");
        terminal.type_in(answer.as_bytes());
        let shown = terminal.until(if code == 0 { "\"tokens\"" } else { "sws pull" });
        assert_eq!(ended(child).code(), Some(code), "{answer:?}: {shown}");
    }
    user.sws(&run).succeeded();
    // Without a terminal there is no question, and no connection.
    user.hub.state().requests.clear();
    user.sws(&[&"run", &"own/other"]).refused(2, &["own/other", "sws pull own/other"]);
    assert!(user.hub.state().requests.is_empty());
}

#[test]
fn without_a_model_pull_and_chat_say_which() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    copy("qwen3_moe", &dir);
    std::fs::write(dir.join("chat_template.jinja"), TEMPLATE).unwrap();
    let user = User::of(&dir);
    let listed = user.sws(&[&"pull"]).succeeded().stdout;
    let json = user.sws(&[&"pull", &"--json"]).succeeded().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_array().map(Vec::len), Some(::sws::SUGGESTIONS.len()));
    for suggestion in ::sws::SUGGESTIONS {
        assert!(listed.contains(&suggestion.command()), "{listed}");
    }
    let chat = || {
        let options: [&dyn AsRef<OsStr>; 4] =
            [&"chat", &"--max-new-tokens=5", &"--ignore-eos", &"--seed=1"];
        let mut child = user.command(&options).stdin(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(b"hello\n");
        Outcome::of(child.wait_with_output().unwrap()).succeeded()
    };
    let told = chat();
    assert!(told.stderr.contains("`sws pull`") && !told.stdout.is_empty(), "{told:?}");
    user.sws(&[&"pull", &format!("{ID}:q8")]).succeeded();
    user.sws(&[&"pull", &ID]).succeeded();
    // The shell is offered its id, once for all forms.
    let mut complete = user.command(&[&"--", &"sws", &"run", &ID[..ID.len() - 2].to_owned()]);
    complete.env("SWS_COMPLETE", "bash").env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_INDEX", "2");
    let offered = Outcome::of(complete.output().unwrap()).succeeded().stdout;
    assert_eq!(offered.lines().filter(|line| *line == ID).count(), 1, "{offered}");
    let answered = chat();
    assert!(answered.stderr.contains(&format!("the model is `{ID}` (bf12)")), "{answered:?}");
    assert!(!answered.stdout.is_empty() && answered.stdout != told.stdout, "{answered:?}");
}

#[test]
fn what_others_have_put_among_the_models_is_not_removed() {
    let temp = tempfile::tempdir().unwrap();
    let dir = published(&temp.path().join("in"), &["config.json", "model.safetensors"]);
    let user = User::of(&dir);
    let mut models = user.command(&[&"rm", &"mymodel", &"--yes"]);
    // A directory of checkpoints in place of the library.
    models.env("SWS_MODELS", temp.path());
    std::fs::create_dir(temp.path().join("mymodel")).unwrap();
    std::fs::write(temp.path().join("mymodel/config.json"), "precious").unwrap();
    Outcome::of(models.output().unwrap()).refused(2, &["mymodel", "sws list"]);
    assert!(temp.path().join("mymodel/config.json").exists());
}

#[test]
fn names_and_options_that_contradict_each_other_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = published(&temp.path().join("in"), &["config.json", "model.safetensors"]);
    let user = User::of(&dir);
    let q4 = format!("{ID}:q4");
    user.sws(&[&"pull", &q4, &"--as", &"q8"]).refused(2, &["--as", "q4"]);
    user.sws(&[&"pull", &q4, &"--as", &"stored"]).refused(2, &["--as", "q4"]);
    user.sws(&[&"pull", &format!("{ID}@v1"), &"--revision", &"v2"]).refused(2, &["--revision"]);
    // A directory that has other shards is not taken for these.
    let out = temp.path().join("out");
    user.sws(&[&"pull", &ID, &"--out", &out]).succeeded();
    let again = user.sws(&[&"pull", &ID, &"--out", &out]).succeeded();
    assert!(again.stdout.contains("there already"), "{again:?}");
    user.sws(&[&"pull", &q4, &"--out", &out]).refused(2, &["out"]);
    // A file is not a directory, which is known before anything is downloaded.
    let file = temp.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    user.hub.state().requests.clear();
    user.sws(&[&"pull", &q4, &"--out", &file]).refused(2, &["file", "not a directory"]);
    assert!(user.hub.state().requests.is_empty());
    let mut list = user.command(&[&"list"]);
    let noted = Outcome::of(list.env("HF_HOME", &file).output().unwrap()).succeeded();
    assert!(noted.sentence().contains("check HF_HOME"), "{noted:?}");
}

#[test]
fn shards_of_a_commit_are_found_by_its_first_digits() {
    let temp = tempfile::tempdir().unwrap();
    let dir = published(&temp.path().join("in"), &["config.json", "model.safetensors"]);
    let user = User::of(&dir);
    user.sws(&[&"pull", &format!("{ID}@0123456789abcdef0123456789abcdef01234567")]).succeeded();
    let listed = user.sws(&[&"list"]).succeeded().stdout;
    assert!(listed.contains("bf12@0123456 "), "{listed}");
    assert!(listed.lines().all(|line| line.len() <= 80), "{listed}");
    let name = format!("{ID}:bf12@0123456");
    user.sws(&[&"verify", &name]).succeeded();
    user.sws(&[&"rm", &name, &"--yes"]).succeeded();
    assert!(user.sws(&[&"list"]).succeeded().stdout.contains("no models yet"));
}

#[test]
fn snapshots_without_a_branch_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let dir = published(&temp.path().join("in"), &["config.json", "model.safetensors"]);
    let user = User::of(&dir);
    let snapshots = user.at("huggingface/hub/models--own--tiny-model/snapshots");
    let commits = ["1", "2"].map(|digit| digit.repeat(40));
    for commit in &commits {
        copy("qwen2_moe", &snapshots.join(commit));
    }
    let names = commits.clone().map(|commit| format!("`{ID}@{commit}`"));
    for typed in [ID.to_owned(), format!("{ID}@1111")] {
        for command in ["inspect", "run"] {
            let outcome = user.sws(&[&command, &typed]);
            assert!(!outcome.stderr.contains("did you mean"), "{outcome:?}");
            outcome.refused(2, &[&format!("`{typed}`"), &names[0], &names[1]]);
        }
    }
    assert!(user.hub.state().requests.is_empty(), "the hub is not asked");
    user.sws(&[&"inspect", &format!("{ID}@{}", commits[1])]).succeeded();
    let listed = |words: &[&str]| {
        let text = user.sws(&[&"list"]).succeeded().stdout;
        assert!(words.iter().all(|word| text.contains(word)), "no {words:?} in {text}");
        let forms: serde_json::Value =
            serde_json::from_str(&user.sws(&[&"list", &"--json"]).succeeded().stdout).unwrap();
        let forms = forms.as_array().unwrap().clone();
        assert!(forms.iter().all(|row| row["complete"] == true), "{forms:?}");
    };
    let short = commits.clone().map(|commit| format!("checkpoint@{}", &commit[..7]));
    listed(&[&short[0], &short[1], "qwen2_moe"]);
    user.sws(&[&"inspect", &format!("{ID}@{}", &commits[1][..7])]).succeeded();
    // One that a branch chooses needs no name, and one of a tag has that.
    let refs = user.at("huggingface/hub/models--own--tiny-model/refs");
    std::fs::create_dir(&refs).unwrap();
    std::fs::write(refs.join("v2"), &commits[1]).unwrap();
    listed(&[&short[0], "checkpoint@v2"]);
    std::fs::write(refs.join("main"), &commits[0]).unwrap();
    listed(&[" checkpoint ", "checkpoint@v2"]);
    std::fs::remove_dir_all(refs).unwrap();
    // What is typed is no suggestion, but the same model in another form is one.
    let other = user.sws(&[&"run", &format!("{ID}:q8@{}", commits[1])]);
    assert!(!other.stderr.contains("did you mean"), "{other:?}");
    other.refused(2, &["neither a path nor a model"]);
    std::fs::remove_dir_all(snapshots.join(&commits[0])).unwrap();
    let other = user.sws(&[&"run", &format!("{ID}:q8")]);
    other.refused(2, &[&format!("did you mean `{ID}`?")]);
}

#[test]
fn shards_elsewhere_stay_and_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let dir = published(&temp.path().join("in"), &["config.json", "model.safetensors"]);
    let user = User::of(&dir);
    let out = user.at("out");
    user.sws(&[&"pull", &ID, &"--out", &out]).succeeded();
    user.sws(&[&"pull", &format!("{ID}:q8")]).succeeded();
    let place = out.canonicalize().unwrap().display().to_string();
    let stays = format!("; the files in `{place}` stay");
    let removed = |name: &str| user.sws(&[&"rm", &name, &"--yes"]).succeeded().stdout;
    assert!(!removed(&format!("{ID}:q8")).contains("stay"));
    let told = removed(ID);
    assert!(told.contains(&stays) && told.contains("0 B"), "{told}");
    user.sws(&[&"verify", &out]).succeeded();
    let mut plan = user.command(&[&"plan", &ID]);
    let maybe = Outcome::of(plan.env("HF_HUB_OFFLINE", "maybe").output().unwrap());
    maybe.refused(2, &["HF_HUB_OFFLINE", "neither"]);
    // A record of shards that somebody has deleted is not in the way of new ones.
    let other = user.at("other");
    user.sws(&[&"pull", &ID, &"--out", &other]).succeeded();
    std::fs::remove_dir_all(&other).unwrap();
    user.sws(&[&"pull", &ID]).succeeded();
    user.sws(&[&"verify", &ID]).succeeded();
}
