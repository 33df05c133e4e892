//! Any bytes as the hub's list of files, an index of weights and a tag, with zeros between them.

use sws_format::is_plain_path;
use sws_hub::{Listing, ModelId, select};

/// True if the bytes chose a model.
pub(crate) fn check(data: &[u8]) -> bool {
    let id: ModelId = "own/model".parse().expect("an id");
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let (list, index, tag) = (part(), part(), part());
    let Ok(listing) = Listing::from_json(&id, "http://hub", list) else { return false };
    assert!(listing.files.iter().all(|file| is_plain_path(&file.name)));
    let tag = std::str::from_utf8(tag).ok().filter(|tag| !tag.is_empty());
    let Ok(selection) = select(&listing, tag, &mut |_| Ok(index.to_vec())) else { return false };
    let weights = selection.weights.files();
    assert!(!weights.is_empty());
    assert!(weights.iter().chain(&selection.small).all(|f| listing.file(&f.name) == Some(f)));
    true
}
