//! Names of models as users type them.

use std::fmt;
use std::str::FromStr;

use sws_format::is_plain_path;

/// Prefixes of the address of a model's page.
const PAGES: [&str; 4] = ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"];
/// Maximum length of a part of an id.
const LONGEST: usize = 96;

/// Id of a model on the hub: `OWNER/NAME`, or `NAME` for some old ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(String);

/// A model, with the optional parts of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// The model.
    pub id: ModelId,
    /// Text after a colon, which selects one of several GGUF files, or an encoding of shards.
    pub tag: Option<String>,
    /// Branch, tag or commit after an `@`.
    pub revision: Option<String>,
}

/// Text that is not the name of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a name of a model: expected OWNER/NAME, OWNER/NAME:Q4_K_M or OWNER/NAME@REVISION"
)]
pub struct BadName(pub String);

impl ModelId {
    /// The id as on the hub.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id as a single file name: `OWNER--NAME`.
    pub fn flat(&self) -> String {
        self.0.replace('/', "--")
    }

    /// The id of a file name made by [`flat`](Self::flat).
    pub fn from_flat(name: &str) -> Option<ModelId> {
        name.replacen("--", "/", 1).parse().ok()
    }

    /// True for an id with an owner. Few published models have none, but many directories look like
    /// that.
    pub fn has_owner(&self) -> bool {
        self.0.contains('/')
    }
}

impl FromStr for ModelId {
    type Err = BadName;

    fn from_str(text: &str) -> Result<ModelId, BadName> {
        let good = text.split('/').count() <= 2 && text.split('/').all(is_part);
        if good { Ok(ModelId(text.to_owned())) } else { Err(BadName(text.to_owned())) }
    }
}

/// True for an owner or a name in the id of a model.
fn is_part(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= LONGEST
        && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && !part.starts_with(['.', '-'])
        && !part.ends_with(['.', '-'])
        // The hub refuses both, and `--` separates the parts of a file name.
        && !part.contains("--")
        && !part.contains("..")
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ModelName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<ModelName, BadName> {
        let mut rest = text;
        let mut revision = None;
        if let Some(page) = PAGES.iter().find_map(|page| text.strip_prefix(page)) {
            rest = page.trim_end_matches('/');
            if let Some((id, tree)) = rest.split_once("/tree/") {
                (rest, revision) = (id, Some(tree));
            }
        }
        if let Some((name, typed)) = rest.split_once('@') {
            (rest, revision) = (name, Some(typed));
        }
        let (id, tag) = match rest.split_once(':') {
            Some((id, tag)) => (id, Some(tag)),
            None => (rest, None),
        };
        if revision.is_some_and(|r| !is_revision(r)) || tag.is_some_and(|t| !is_tag(t)) {
            return Err(BadName(text.to_owned()));
        }
        Ok(ModelName {
            id: id.parse().map_err(|_| BadName(text.to_owned()))?,
            tag: tag.map(str::to_owned),
            revision: revision.map(str::to_owned),
        })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        Ok(())
    }
}

/// True for a valid name of a branch, a tag or a commit. It becomes a path in the cache.
pub(crate) fn is_revision(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+/".contains(c);
    is_plain_path(text) && text.chars().all(plain) && !text.split('/').any(|p| p.starts_with('.'))
}

/// True for a commit: 40 hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    is_hex(text, 40)
}

/// Minimum number of digits of an abbreviated commit.
const LEAST_DIGITS: usize = 7;

/// True if a commit begins with these digits, and there are enough of them.
pub(crate) fn begins_commit(digits: &str, commit: &str) -> bool {
    digits.len() >= LEAST_DIGITS && is_commit(commit) && commit.starts_with(digits)
}

/// The first digits of a commit. More of them may be needed.
pub fn short_commit(commit: &str) -> &str {
    if is_commit(commit) { &commit[..LEAST_DIGITS] } else { commit }
}

/// True for this number of lower-case hexadecimal digits.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn is_tag(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    is_plain_path(text) && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_an_id_a_tag_and_a_revision() {
        #[rustfmt::skip]
        let cases = [
            ("gpt2", Some(("gpt2", None, None))),
            ("Qwen/Qwen3-30B-A3B", Some(("Qwen/Qwen3-30B-A3B", None, None))),
            ("a/b:Q4_K_M", Some(("a/b", Some("Q4_K_M"), None))),
            ("a/b@refs/pr/3", Some(("a/b", None, Some("refs/pr/3")))),
            ("a/b:q8@main", Some(("a/b", Some("q8"), Some("main")))),
            ("https://huggingface.co/a/b", Some(("a/b", None, None))),
            ("https://hf.co/a/b/", Some(("a/b", None, None))),
            ("hf.co/a/b", Some(("a/b", None, None))),
            ("huggingface.co/a/b/tree/v1.0", Some(("a/b", None, Some("v1.0")))),
            ("", None),
            ("a/b/c", None),
            ("../b", None),
            ("a/.b", None),
            ("a--b/c", None),
            ("a/b@../../etc", None),
            ("a/b@/etc", None),
            ("a/b@", None),
            ("a/b:", None),
            ("a/b:../c", None),
            ("a b/c", None),
            ("a/b\0", None),
            ("https://example.com/a/b", None),
            ("tell me a story", None),
        ];
        for (text, expected) in cases {
            let name = text.parse::<ModelName>().ok();
            let found = name
                .as_ref()
                .map(|name| (name.id.as_str(), name.tag.as_deref(), name.revision.as_deref()));
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn flat_names_round_trip() {
        for id in ["gpt2", "Qwen/Qwen3-30B-A3B", "a_b/c.d"] {
            let id: ModelId = id.parse().unwrap();
            assert_eq!(ModelId::from_flat(&id.flat()), Some(id));
        }
        assert_eq!(ModelId::from_flat("../x"), None);
    }
}
