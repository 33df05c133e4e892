//! The snapshots of a model in the cache, and the names by which they are found.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use sws_format::open_regular;

use crate::CachedModel;
use crate::cache::{entries, names_in};
use crate::name::{begins_commit, is_commit, is_revision};

const MAIN: &str = "main";
/// Maximum depth of folders below `refs`: `refs/refs/pr/1` is the deepest.
const MOST_FOLDERS: u32 = 4;

/// The files of a model at a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit. It is the name of a directory, which other programs may have created.
    pub commit: String,
    /// The branch, the tag or the abbreviated commit that finds the snapshot; `None` for the
    /// snapshot that is found without a revision.
    pub revision: Option<String>,
    /// Directory of the snapshot.
    pub dir: PathBuf,
}

impl CachedModel {
    /// The snapshot of a branch, a tag or a commit, by default of `main`. If no branch is known, as
    /// after a download by commit, it is the only snapshot. A commit may be abbreviated.
    pub fn snapshot(&self, revision: Option<&str>) -> Option<PathBuf> {
        let commit = match revision {
            Some(commit) if is_commit(commit) => Some(commit.to_owned()),
            Some(revision) => self.commit(revision).or_else(|| self.beginning_with(revision)),
            None => self.commit(MAIN).or_else(|| self.only()),
        };
        let dir = self.at(&commit?);
        if dir.is_dir() { Some(dir) } else { None }
    }

    /// All snapshots, beginning with the one that is found without a revision.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let plain = self.snapshot(None);
        let names = self.revisions();
        let mut found = Vec::new();
        for commit in self.commits() {
            let dir = self.at(&commit);
            let revision = match plain.as_ref() == Some(&dir) {
                true => None,
                false => match names.get(&commit).cloned().or_else(|| self.shortest(&commit)) {
                    None => continue,
                    named => named,
                },
            };
            found.push(Snapshot { commit, revision, dir });
        }
        found.sort_by_key(|snapshot| snapshot.revision.clone());
        found
    }

    /// The commits that have a snapshot, sorted. They are directory names, which may be anything.
    pub fn commits(&self) -> Vec<String> {
        let dir = self.dir().join("snapshots");
        let mut commits: Vec<String> = names_in(&dir).collect();
        commits.retain(|name| dir.join(name).is_dir());
        commits.sort();
        commits
    }

    /// The commit of a branch or a tag. `hf_hub` would read any file as a whole, even a pipe.
    fn commit(&self, revision: &str) -> Option<String> {
        if !is_revision(revision) {
            return None;
        }
        let mut text = String::new();
        let file = open_regular(self.dir().join("refs").join(revision)).ok()?;
        file.take(256).read_to_string(&mut text).ok()?;
        let commit = text.trim();
        if is_commit(commit) { Some(commit.to_owned()) } else { None }
    }

    /// The commit of the only snapshot.
    fn only(&self) -> Option<String> {
        single(self.commits())
    }

    /// The commit with a snapshot that begins with these digits.
    fn beginning_with(&self, digits: &str) -> Option<String> {
        let begins = |commit: &String| begins_commit(digits, commit);
        single(self.commits().into_iter().filter(begins).collect())
    }

    /// The shortest prefix of a commit that no other commit has.
    fn shortest(&self, commit: &str) -> Option<String> {
        for len in 1..=commit.len() {
            if let Some(digits) = commit.get(..len)
                && self.beginning_with(digits).is_some()
            {
                return Some(digits.to_owned());
            }
        }
        None
    }

    /// The shortest branch or tag name of each commit.
    fn revisions(&self) -> BTreeMap<String, String> {
        let mut names = Vec::new();
        below(&self.dir().join("refs"), "", MOST_FOLDERS, &mut names);
        names.sort_by_key(|name| std::cmp::Reverse((name.len(), name.clone())));
        names.into_iter().filter_map(|name| Some((self.commit(&name)?, name))).collect()
    }
}

fn single(commits: Vec<String>) -> Option<String> {
    let [only] = <[String; 1]>::try_from(commits).ok()?;
    Some(only)
}

/// Adds the files of a directory and its folders, with paths relative to it.
fn below(dir: &Path, folder: &str, folders: u32, names: &mut Vec<String>) {
    for entry in entries(dir) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{folder}{name}");
        match entry.file_type() {
            Ok(kind) if kind.is_file() => names.push(name),
            Ok(kind) if kind.is_dir() && folders > 1 => {
                below(&entry.path(), &format!("{name}/"), folders - 1, names);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HubCache;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    const ALIKE: &str = "0123456780000000000000000000000000000000";
    const OTHER: &str = "1123456789abcdef0123456789abcdef01234567";

    fn model(dir: &Path, commits: &[&str]) -> CachedModel {
        let model = HubCache::new(dir).model(&"own/model".parse().unwrap());
        for commit in commits {
            std::fs::create_dir_all(model.at(commit)).unwrap();
        }
        model
    }

    #[test]
    fn snapshots_are_found_by_branch_and_commit() {
        let dir = tempfile::tempdir().unwrap();
        let model = model(dir.path(), &[]);
        assert_eq!((model.snapshot(None), model.snapshots()), (None, Vec::new()));
        let snapshot = model.at(COMMIT);
        std::fs::create_dir_all(&snapshot).unwrap();

        assert_eq!(model.snapshot(None).as_ref(), Some(&snapshot), "the only one");
        assert_eq!(model.commits(), [COMMIT]);
        assert_eq!(model.snapshot(Some("main")), None);
        model.point("main", COMMIT).unwrap();
        model.point("refs/pr/1", OTHER).unwrap();
        for revision in ["main", COMMIT, &COMMIT[..7]] {
            assert_eq!(model.snapshot(Some(revision)).as_ref(), Some(&snapshot), "{revision}");
        }
        assert_eq!(model.snapshot(Some(&COMMIT[..6])), None, "too short");
        assert_eq!(model.snapshot(Some("refs/pr/1")), None, "never downloaded");
        std::fs::write(model.dir().join("refs/main"), "../../..").unwrap();
        assert_eq!(model.snapshot(Some("main")), None, "no commit");
    }

    #[test]
    fn each_snapshot_has_a_name_that_finds_it() {
        let dir = tempfile::tempdir().unwrap();
        let model = model(dir.path(), &[COMMIT, ALIKE, OTHER, "notes"]);
        let names = |model: &CachedModel| -> Vec<Option<String>> {
            let all = model.snapshots();
            for snapshot in &all {
                let found = model.snapshot(snapshot.revision.as_deref());
                assert_eq!(found.as_ref(), Some(&snapshot.dir));
            }
            all.into_iter().map(|snapshot| snapshot.revision).collect()
        };
        let some = |name: &str| Some(name.to_owned());
        let begun = [&ALIKE[..10], &COMMIT[..10], &OTHER[..7]].map(some);
        assert_eq!(names(&model), begun, "no branch is known, and one directory is not a commit");
        assert_eq!(model.snapshot(Some(&COMMIT[..9])), None, "of which there are two");
        model.point("main", ALIKE).unwrap();
        model.point("v2", OTHER).unwrap();
        model.point("refs/pr/1", OTHER).unwrap();
        assert_eq!(names(&model), [None, some(&COMMIT[..10]), some("v2")]);
        assert!(model.snapshot(Some("refs/pr/1")).is_some());
    }
}
