//! Long texts: the experts and positions that are chosen for each token, and the last logits, equal
//! those of transformers.

mod digests;
mod text;

use std::path::Path;

use serde_json::Value;
use sws_testing::goldens::{self, Tensors, goldens};

use text::{Choices, Found, run};

/// Choices whose margin is smaller may differ: honest rounding could choose otherwise. Exact ties may
/// not: the lower position comes first.
const MARGIN: f32 = 1e-5;

/// Tokens of a chunk of very long texts, as in `long.py`.
const CHUNK: usize = 512;

/// Choices compared, and those left out.
#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    all: usize,
    left_out: usize,
}

impl Compared {
    /// Compares choices with those expected, sorted, one row per token.
    fn rows(&mut self, what: &str, found: &Choices, expected: &[Vec<u32>], margins: &[f32]) {
        assert_eq!(found.rows.len(), expected.len(), "{what}");
        let rows = found.rows.iter().zip(expected);
        for (token, ((found, expected), &margin)) in rows.zip(margins).enumerate() {
            self.all += 1;
            match margin > MARGIN || margin == 0.0 {
                true => assert_eq!(found, expected, "{what}, token {token}, margin {margin}"),
                false => self.left_out += 1,
            }
        }
    }

    /// Asserts that a thousandth was left out at most.
    fn check(&self, what: &str) {
        assert!(self.left_out * 1000 <= self.all, "{what}: {self:?}");
    }

    /// The share left out, in percent.
    fn share(&self) -> String {
        match self.all {
            0 => "–".to_owned(),
            all => format!("{:.4} %", 100.0 * self.left_out as f64 / all as f64),
        }
    }
}

/// Asserts that logits are as close as they must be. Returns the largest difference, and the largest
/// logit, or 1.
fn check_logits(what: &str, found: &[f32], expected: &[f32]) -> (f32, f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1.0, |m: f32, x| m.max(x.abs()));
    let pairs = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let worst = pairs.fold(0.0, |m: f32, x| if x <= m { m } else { x });
    assert!(worst < 1e-4 * largest, "{what}: {worst} of {largest}");
    (worst, largest)
}

/// Compares a text with every choice that `long.safetensors` beside the checkpoint has.
fn check(dir: &Path, chunk: usize) {
    let file = Tensors::read(&dir.join("long.safetensors"));
    let tokens = file.integers("tokens");
    let Found { routes, selected, logits, .. } = run(dir, &tokens, chunk, file.0["logits"].1[0]);
    let mut compared = Compared::default();
    let positions = |selected: &&Choices| selected.rows.len() == tokens.len();
    let selected: Vec<_> = selected.iter().filter(positions).collect();
    for (kind, margins, choices) in [
        ("routes", "route_margins", routes.iter().collect()),
        ("selected", "selected_margins", selected),
    ] {
        for (number, found) in choices.into_iter().enumerate() {
            let name = format!("{kind}.{number}");
            let margins = file.floats(&format!("{margins}.{number}"));
            let expected = file.integers(&name);
            let rows = expected.chunks(expected.len() / margins.len()).enumerate();
            // Positions that a token does not see fill up its list.
            let seen = |token| move |it: &&u32| kind == "routes" || **it <= token as u32;
            let rows: Vec<Vec<u32>> = rows
                .map(|(token, row)| row.iter().filter(seen(token)).copied().collect())
                .collect();
            compared.rows(&format!("{} {name}", dir.display()), found, &rows, &margins);
        }
    }
    check_logits(&dir.display().to_string(), &logits, &file.floats("logits"));
    assert!(compared.all > 0, "{}", dir.display());
    compared.check(&dir.display().to_string());
}

#[test]
fn choices_in_a_text_of_hundreds_of_tokens() {
    let mut checked = 0;
    for entry in goldens().read_dir().unwrap() {
        let dir = entry.unwrap().path();
        if dir.join("long.safetensors").exists() {
            check(&dir, 150);
            checked += 1;
        }
    }
    assert!(checked >= 2, "{checked}");
}

/// Compares a very long text with the digests of a kind, and returns a row of a table.
fn check_kind(kind: &str, entry: &Value) -> String {
    let file = Tensors::read(&goldens().join(format!("long/{kind}.safetensors")));
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join(kind);
    let checkpoint = entry["checkpoint"].as_str().unwrap();
    goldens::copy(checkpoint, &dir);
    goldens::change(&dir, "config.json", |config| change(config, &entry["config"]));
    let [kept, vocab] = file.0["logits"].1[..] else { panic!("{kind}: the shape of logits") };
    let count = length(entry) as usize;
    let mut tokens = digests::tokens(count, vocab);
    if file.0.contains_key("replaced") {
        for pair in file.integers("replaced").as_chunks().0 {
            let [at, token] = *pair;
            tokens[at as usize] = token;
        }
    }
    let found = run(&dir, &tokens, CHUNK, kept);

    let mut shares = [Compared::default(); 2];
    let kinds = [("routes", &found.routes), ("selected", &found.selected)];
    for ((name, choices), compared) in kinds.into_iter().zip(&mut shares) {
        let digests = file.0.keys().filter(|key| key.starts_with(name)).count() / 2;
        assert_eq!(choices.len(), digests, "{kind}: layers with {name}");
        for (number, choices) in choices.iter().enumerate() {
            let name = format!("{name}.{number}");
            let left_out = file.integers(&format!("{name}_left_out"));
            let expected = file.0[&name].2.as_chunks().0.iter().map(|&it| u64::from_le_bytes(it));
            let (found, all) = digests::digests(choices, count, &left_out);
            digests::compare(&format!("{kind} {name}"), &found, &expected.collect::<Vec<_>>());
            compared.all += all;
            compared.left_out += left_out.len();
        }
        compared.check(&format!("{kind} {name}"));
    }
    let (worst, largest) = check_logits(kind, &found.logits, &file.floats("logits"));
    let [routes, sets] = shares.map(|share| share.share());
    let (held, seconds) = (found.held as f64 / 1024.0, found.time.as_secs_f64());
    format!(
        "| {kind} | {checkpoint} | {worst:.1e} | {largest:.2} | {routes} | {sets} | {held:.0} | {:.0} | {seconds:.1} |",
        found.held as f64 / count as f64
    )
}

/// Replaces entries of a configuration, within `text_config` too.
fn change(config: &mut Value, by: &Value) {
    for (key, value) in by.as_object().unwrap() {
        match config.get_mut(key).filter(|_| key == "text_config") {
            Some(inner) => change(inner, value),
            None => config[key] = value.clone(),
        }
    }
}

fn kinds() -> serde_json::Map<String, Value> {
    let bytes = std::fs::read(goldens().join("long/kinds.json")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// The number of tokens of an entry.
fn length(entry: &Value) -> u64 {
    entry["tokens"].as_u64().unwrap()
}

#[test]
fn choices_in_texts_of_thousands_of_tokens() {
    let kinds = kinds();
    let short: Vec<_> = kinds.iter().filter(|(_, entry)| length(entry) <= 4096).collect();
    assert!(short.len() >= 3, "{short:?}");
    for (kind, entry) in short {
        check_kind(kind, entry);
    }
}

/// Prompts of 32,768 tokens; SWS_KINDS names some of the kinds, separated by commas.
#[test]
#[ignore = "minutes; prints a table of the texts"]
#[expect(clippy::print_stdout, reason = "the table")]
fn very_long_texts() {
    let only = std::env::var("SWS_KINDS").ok();
    let wanted = |kind: &str| only.as_ref().is_none_or(|only| only.split(',').any(|it| it == kind));
    let mut failed = Vec::new();
    let long = |entry: &Value| length(entry) > 4096;
    for (kind, entry) in kinds().iter().filter(|(kind, entry)| wanted(kind) && long(entry)) {
        match std::panic::catch_unwind(|| check_kind(kind, entry)) {
            Ok(row) => println!("{row}"),
            Err(_) => failed.push(kind.clone()),
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// Checkpoints with every choice, which `long.py --full` has written; see the README of the goldens.
#[test]
#[ignore = "set SWS_LONG to a folder that `long.py --full` has written"]
fn every_choice_of_long_texts() {
    let folder = std::env::var_os("SWS_LONG").expect("SWS_LONG");
    for entry in Path::new(&folder).read_dir().unwrap() {
        check(&entry.unwrap().path(), CHUNK);
    }
}
