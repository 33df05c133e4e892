//! The choice of a GGUF model among the files of a repository.

use std::collections::BTreeMap;

use sws_format::gguf_model;

const ENDING: &str = ".gguf";
/// Prefix of files with the vision part of a model, which are not models on their own.
const PROJECTOR: &str = "mmproj";

/// A tag that does not identify a single model, or a missing tag where there are several models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnclearTag {
    /// The models that match the tag, or all models if none matches.
    pub models: Vec<String>,
    /// True if no model matches.
    pub none: bool,
}

/// Chooses the model with `tag` in its name, or the only one. Returns its files, sorted; none if
/// there are no GGUF files.
///
/// A tag is the end of a file name (`Q4_K_M`), a folder, or a whole name.
pub fn choose_gguf<'a>(
    names: impl IntoIterator<Item = &'a str>,
    tag: Option<&str>,
) -> Result<Vec<&'a str>, UnclearTag> {
    let mut models = gguf_models(names);
    let mut found: Vec<&str> = models.keys().copied().collect();
    if let Some(tag) = tag {
        found.retain(|model| has_tag(model, tag));
        let name = tag.trim_end_matches(ENDING);
        if found.contains(&name) {
            found.retain(|model| *model == name);
        }
    }
    match found[..] {
        [] if models.is_empty() && tag.is_none() => Ok(Vec::new()),
        [model] => Ok(models.remove(model).unwrap_or_default()),
        [] => Err(UnclearTag { models: owned(models.into_keys()), none: true }),
        _ => Err(UnclearTag { models: owned(found), none: false }),
    }
}

/// The GGUF models among these files, by name, with the sorted files of each.
pub fn gguf_models<'a>(
    names: impl IntoIterator<Item = &'a str>,
) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut models: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in names {
        let file = name.rsplit('/').next().unwrap_or(name);
        if let Some((model, _)) = gguf_model(name)
            && !file.starts_with(PROJECTOR)
        {
            models.entry(model).or_default().push(name);
        }
    }
    for files in models.values_mut() {
        files.sort_unstable();
    }
    models
}

/// The shortest tag that chooses a model among these files; `None` if its name alone does.
pub fn gguf_tag<'a>(files: &[&str], model: &'a str) -> Option<&'a str> {
    let file = model.rsplit('/').next().unwrap_or(model);
    let ends = file.rmatch_indices(['-', '.']).map(|(at, _)| &file[at + 1..]);
    let folder = model.rsplit_once('/').and_then(|(folder, _)| folder.rsplit('/').next());
    ends.chain(folder).find(|tag| is_like_encoding(tag) && chooses(files, tag, model))
}

/// True if a tag may be the name of an encoding. Numbers alone are of sizes and versions.
fn is_like_encoding(tag: &str) -> bool {
    tag.starts_with(|c: char| c.is_ascii_alphabetic()) && tag.contains(|c: char| c.is_ascii_digit())
}

/// True if a tag chooses this model among the files.
fn chooses(files: &[&str], tag: &str, model: &str) -> bool {
    let Ok(chosen) = choose_gguf(files.iter().copied(), Some(tag)) else { return false };
    match chosen.first().copied().and_then(gguf_model) {
        Some((chosen, _)) => chosen == model,
        None => false,
    }
}

fn owned<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// True if these files are all parts of a model.
pub fn is_whole(files: &[&str]) -> bool {
    match files.first().copied().and_then(gguf_model) {
        Some((_, count)) => count == files.len(),
        None => true,
    }
}

/// True if the name of a model ends with the tag, lies in a folder with that name, or equals it.
fn has_tag(model: &str, tag: &str) -> bool {
    let tag = tag.strip_suffix(ENDING).unwrap_or(tag);
    let (folders, file) = model.rsplit_once('/').unwrap_or(("", model));
    let folder = folders.rsplit('/').next().unwrap_or("");
    model.eq_ignore_ascii_case(tag) || ends_with(file, tag) || folder.eq_ignore_ascii_case(tag)
}

/// True if a name consists of the tag, or ends with it after a separator.
fn ends_with(name: &str, tag: &str) -> bool {
    let Some(start) = name.len().checked_sub(tag.len()) else { return false };
    let Some((before, end)) = name.split_at_checked(start) else { return false };
    end.eq_ignore_ascii_case(tag) && (before.is_empty() || before.ends_with(['-', '.', '_']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_chooses_one_model() {
        let names = [
            "README.md",
            "M-Q4_K_M.gguf",
            "M-Q8_0.gguf",
            "M-UD-Q8_0.gguf",
            "mmproj-F16.gguf",
            "BF16/M-BF16-00001-of-00002.gguf",
            "BF16/M-BF16-00002-of-00002.gguf",
        ];
        let parts = ["BF16/M-BF16-00001-of-00002.gguf", "BF16/M-BF16-00002-of-00002.gguf"];
        let choose = |tag| choose_gguf(names, Some(tag));
        assert_eq!(choose("Q4_K_M").unwrap(), ["M-Q4_K_M.gguf"]);
        assert_eq!(choose("q4_k_m").unwrap(), ["M-Q4_K_M.gguf"]);
        assert_eq!(choose("M-Q4_K_M.gguf").unwrap(), ["M-Q4_K_M.gguf"]);
        assert_eq!(choose("M-Q8_0").unwrap(), ["M-Q8_0.gguf"]);
        assert_eq!(choose("bf16").unwrap(), parts);
        let several = choose("Q8_0").unwrap_err();
        assert_eq!(several.models, ["M-Q8_0", "M-UD-Q8_0"]);
        assert!(!several.none);
        let none = choose("K_M_Q5").unwrap_err();
        assert!(none.none && none.models.len() == 4, "{none:?}");
        assert!(choose("8_0").unwrap_err().none, "the end of a word is no tag");
        assert!(!choose_gguf(names, None).unwrap_err().none);
        assert_eq!(choose_gguf(["a.gguf", "b.md"], None).unwrap(), ["a.gguf"]);
        assert_eq!(choose_gguf(["b.md"], None).unwrap(), [""; 0]);
        assert!(choose_gguf(["b.md"], Some("Q4")).unwrap_err().none);
    }

    #[test]
    fn a_model_has_a_tag_that_chooses_it() {
        let files = [
            "M-Q4_K_M.gguf",
            "M-Q8_0.gguf",
            "M-UD-Q8_0.gguf",
            "M-Q5_0.gguf",
            "M-v1.5.gguf",
            "BF16/M-BF16-00001-of-00002.gguf",
        ];
        let check = |model, tag| assert_eq!(gguf_tag(&files, model), tag, "{model}");
        check("M-Q4_K_M", Some("Q4_K_M"));
        check("M-UD-Q8_0", Some("UD-Q8_0"));
        check("M-Q5_0", Some("Q5_0"));
        check("M-v1.5", Some("v1.5"));
        check("BF16/M-BF16", Some("BF16"));
        // Only the whole name is its own.
        check("M-Q8_0", None);
        assert_eq!(choose_gguf(files, Some("M-Q8_0")).unwrap(), ["M-Q8_0.gguf"]);
    }

    #[test]
    fn models_in_parts_need_all_of_them() {
        let parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert!(is_whole(&parts));
        assert!(!is_whole(&parts[..1]));
        assert!(is_whole(&["m.gguf"]));
        assert!(is_whole(&[]));
    }
}
