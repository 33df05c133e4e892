//! Relative links of the documentation lead to files and headings that exist.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders without documents of the project.
const SKIPPED: [&str; 5] = ["target", ".git", "goldens", "fixtures", "corpus"];

fn documents(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in dir.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap_or_default();
        if path.is_dir() && !SKIPPED.contains(&name) && !path.is_symlink() {
            documents(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Anchors of the headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    };
    let numbered = headings.map(|heading| {
        let anchor = anchor(heading);
        let count = counts.entry(anchor.clone()).or_default();
        *count += 1;
        if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
    });
    numbered.collect()
}

/// Targets of links and pictures, outside of `code`.
fn targets(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let plain: String = text.split('`').step_by(2).collect::<Vec<_>>().join("x");
    let mut rest = plain.as_str();
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        found.extend(rest.split_once(')').map(|(target, _)| target.to_owned()));
    }
    found
}

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let mut files = Vec::new();
    documents(&root, &mut files);
    let (mut broken, mut links) = (Vec::new(), 0);
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        for target in targets(&prose(&text).collect::<Vec<_>>().join("\n")) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let to = match path {
                "" => file.clone(),
                path => file.parent().unwrap().join(path),
            };
            let has_anchor = || {
                let text = std::fs::read_to_string(&to).unwrap_or_default();
                anchors(&text).iter().any(|known| known == anchor)
            };
            if !to.exists() || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{}: {target}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(links > 100, "only {links} links found");
}
