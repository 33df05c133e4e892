//! The configuration file.

use std::ffi::OsStr;
use std::path::Path;

use crate::goldens::copy;
use crate::sws::{Outcome, command, sws};

/// Runs the model with a configuration.
fn run(config: &Path, model: &Path, more: &[&str]) -> Outcome {
    let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"run", &model, &"--tokens=1,2", &"--json"];
    args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
    let mut command = command(&args);
    Outcome::of(command.env("SWS_CONFIG", config).output().unwrap())
}

fn tokens(outcome: Outcome) -> usize {
    let json: serde_json::Value = serde_json::from_str(&outcome.succeeded().stdout).unwrap();
    json["tokens"].as_array().unwrap().len()
}

#[test]
fn entries_are_defaults_by_command_and_model() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    let file = temp.path().join("config.toml");
    copy("qwen3_moe", &model);
    let write = |text: &str| {
        let text = text.replace("MODEL", model.to_str().unwrap());
        std::fs::write(&file, text).unwrap();
    };
    let all = "[all]\nmax-new-tokens = 3\nignore-eos = true\nram = \"1GiB\"\n";
    write(all);
    assert_eq!(tokens(run(&file, &model, &[])), 3);
    // What is typed wins, and what excludes an entry.
    assert_eq!(tokens(run(&file, &model, &["-n", "2"])), 2);
    assert_eq!(tokens(run(&file, &model, &["--resident"])), 3);
    // The command before all, and the model before both. Others have no part in it.
    write(&format!("{all}[command.run]\nmax-new-tokens = 4\n[command.chat]\nmax-new-tokens = 9\n"));
    assert_eq!(tokens(run(&file, &model, &[])), 4);
    write(&format!(
        "{all}[command.run]\nmax-new-tokens = 4\n[model.\"MODEL\"]\nmax-new-tokens = 5\n"
    ));
    assert_eq!(tokens(run(&file, &model, &[])), 5);
    write(&format!("{all}[model.\"own/other\"]\nmax-new-tokens = 5\n"));
    assert_eq!(tokens(run(&file, &model, &[])), 3);
    // A specific entry takes the place of those that it excludes, and one that needs another option
    // waits for it.
    write(&format!("{all}[model.\"MODEL\"]\nresident = true\n[command.run]\nparallel = 8\n"));
    assert_eq!(tokens(run(&file, &model, &[])), 3);
    write(&format!("{all}[command.\"draft score\"]\nbudget = 20\n"));
    assert_eq!(tokens(run(&file, &model, &[])), 3);
    // The same model by another name, and a model by the command.
    write(&format!("{all}[model.\"MODEL/../model\"]\nmax-new-tokens = 6\n"));
    assert_eq!(tokens(run(&file, &model, &[])), 6);
    let sections = "[command.run]\nmodel = \"MODEL\"\n[model.\"MODEL\"]\nmax-new-tokens = 7\n";
    write(&format!("{all}{sections}"));
    let mut alone = command(&[&"run", &"--tokens=1,2", &"--json"]);
    assert_eq!(tokens(Outcome::of(alone.env("SWS_CONFIG", &file).output().unwrap())), 7);
    // What is typed replaces all values of an option that may be given several times.
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    write(&format!("{all}stop = {letters:?}\n"));
    assert!(tokens(run(&file, &model, &["--seed=1"])) < 3);
    assert_eq!(tokens(run(&file, &model, &["--seed=1", "--stop=no such text"])), 3);
    // A screen is for terminals, unless it was typed.
    write(&format!("{all}watch = true\n"));
    assert_eq!(tokens(run(&file, &model, &[])), 3);
    run(&file, &model, &["--watch"]).refused(2, &["--watch needs a terminal on standard error"]);
    write(all);
    // Commands without the option have none of it, and --config is SWS_CONFIG.
    let inspect = sws(&[&"inspect", &model, &"--config", &file]).succeeded();
    assert!(inspect.stdout.contains("qwen3_moe"), "{inspect:?}");
    let shown = sws(&[&"config", &"--config", &file]).succeeded().stdout;
    assert!(shown.contains("max-new-tokens = 3") && shown.contains("config.toml"), "{shown}");
    assert!(sws(&[&"config"]).succeeded().stdout.contains("[all]"));
}

#[test]
fn wrong_files_are_refused_with_one_sentence() {
    let temp = tempfile::tempdir().unwrap();
    let model = temp.path().join("model");
    let file = temp.path().join("config.toml");
    copy("qwen3_moe", &model);
    let cases: [(&str, &[&str]); 10] = [
        ("[all", &["config.toml", "line 1"]),
        ("[all]\n\nram = ", &["config.toml", "line 3"]),
        ("[everything]\n", &["config.toml", "everything"]),
        ("[all]\nrum = \"8GiB\"\n", &["[all]", "rum", "no option"]),
        ("[command.rum]\nram = \"8GiB\"\n", &["command.\"rum\"", "no command"]),
        ("[command.rum]\nram = \"8GiB\"\n", &["`sws help` lists them"]),
        ("[model.\"x\"]\nram = \"8GiB\"\n", &["[model.\"x\"]", "OWNER/NAME"]),
        ("[command.list]\nram = \"8GiB\"\n", &["command.\"list\"", "ram"]),
        ("[all]\nresident = 3\n", &["resident", "true or false"]),
        ("[all]\nram = { a = 1 }\n", &["ram", "a number or a text"]),
    ];
    for (text, words) in cases {
        std::fs::write(&file, text).unwrap();
        run(&file, &model, &[]).refused(2, words);
    }
    std::fs::write(&file, "[all]\nram = \"plenty\"\n").unwrap();
    run(&file, &model, &[]).refused(2, &["config.toml", "plenty"]);
    let mut shown = command(&[&"config"]);
    shown.env_remove("SWS_CONFIG").env("XDG_CONFIG_HOME", &file);
    Outcome::of(shown.output().unwrap()).refused(2, &["XDG_CONFIG_HOME", "not a directory"]);
    std::fs::write(&file, "#".repeat(2 << 20)).unwrap();
    run(&file, &model, &[]).refused(2, &["config.toml", "bytes"]);
    run(&temp.path().join("none.toml"), &model, &[]).refused(2, &["none.toml", "--config"]);
}
