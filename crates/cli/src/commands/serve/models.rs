//! The models that `sws serve` serves: how they are typed, found and named.

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use sws::{Model, TextCodec};
use sws_format::MANIFEST_FILE;
use sws_hub::{gguf_models, is_whole};
use sws_serve::ModelNames;

use crate::args;
use crate::here::file_names;
use crate::model;
use crate::terminal::note;

/// Maximum number of models.
const MOST: usize = 64;

/// A model as it was typed.
#[derive(Debug, Default, PartialEq)]
struct TypedModel {
    /// Its path or id; `None` for the bundled model.
    place: Option<PathBuf>,
    /// The name before `=`.
    name: Option<String>,
    /// True for a model in a directory of models.
    is_found: bool,
}

/// A model that was opened.
pub(super) struct OpenedModel {
    pub(super) model: Model,
    pub(super) text: TextCodec,
    pub(super) names: ModelNames,
    /// What was typed, or the directory of the model.
    place: PathBuf,
}

/// Opens all models that were typed, with their tokenizers. `--name` and `--alias` are of the first.
pub(super) fn open(args: &args::Serve) -> anyhow::Result<Vec<OpenedModel>> {
    let typed: Vec<PathBuf> =
        args.model.model.iter().chain(&args.others).map(PathBuf::clone).collect();
    let all = models_of(&typed)?;
    if all.len() > 1 {
        check_several(args)?;
    }
    let mut opened: Vec<OpenedModel> = Vec::with_capacity(all.len());
    let mut left_out = None;
    for one in all {
        let is_found = one.is_found;
        match open_one(args, one, opened.is_empty()) {
            Ok(model) => opened.push(model),
            Err(error) if is_found => {
                note!("sws: a model is left out: {error}");
                left_out.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    match left_out {
        Some(error) if opened.is_empty() => return Err(error),
        _ => check_names(&opened)?,
    }
    spread(&mut opened, &args.model.advanced.also)?;
    Ok(opened)
}

/// Spreads the reads of each model over those copies that are of it. The first refuses the others.
fn spread(opened: &mut [OpenedModel], copies: &[PathBuf]) -> sws::Result<()> {
    let mut of_models: Vec<Vec<PathBuf>> = vec![Vec::new(); opened.len()];
    for copy in copies {
        let owner = opened.iter().position(|one| one.model.has_copy_in(copy)).unwrap_or(0);
        if let Some(own) = of_models.get_mut(owner) {
            own.push(copy.clone());
        }
    }
    for (one, copies) in opened.iter_mut().zip(of_models) {
        model::spread(&mut one.model, &copies)?;
    }
    Ok(())
}

/// Refuses options that are of one model.
fn check_several(args: &args::Serve) -> anyhow::Result<()> {
    if args.model.resident {
        bail!(
            "--resident keeps a whole model in memory, and several are served within --ram; leave it out, or name one model"
        );
    }
    if args.model.advanced.draft.is_some() {
        bail!(
            "--draft is the file of one model, and several are served; put each into the directory of its model as draft.safetensors"
        );
    }
    Ok(())
}

fn open_one(args: &args::Serve, typed: TypedModel, is_first: bool) -> anyhow::Result<OpenedModel> {
    let TypedModel { place, name, .. } = typed;
    let model = model::open_typed(place.as_deref(), &args.model)?;
    // A model without a template continues texts only.
    let text = model.with(args.model.options()).read_text()?;
    let text = text.while_loaded(model.chat_template().ok());
    let shown = match &place {
        Some(place) => place.clone(),
        None => model.dir().to_owned(),
    };
    // Clients know a model by the id that found it.
    let found_by = match place {
        Some(place) if !place.exists() && model.supplier().is_none() => {
            place.to_string_lossy().into_owned()
        }
        _ => model.name(),
    };
    let given = if is_first { args.name.clone() } else { None };
    let id = given.or(name).unwrap_or(found_by);
    let mut aliases = if is_first { args.alias.clone() } else { Vec::new() };
    // Or by its file, whatever the server calls it.
    aliases.extend(model.gguf_stem().map(str::to_owned));
    Ok(OpenedModel { model, text, names: ModelNames { id, aliases }, place: shown })
}

/// Refuses models that clients cannot tell apart.
fn check_names(opened: &[OpenedModel]) -> anyhow::Result<()> {
    for (at, later) in opened.iter().enumerate() {
        if let Some(other) = opened[..at].iter().find(|other| other.names.id == later.names.id) {
            bail!(
                "two models have the id `{}`, `{}` and `{}`; name one of them, as in `sws serve A other=B`",
                later.names.id,
                other.place.display(),
                later.place.display(),
            );
        }
    }
    Ok(())
}

/// The models of what was typed: a directory that is no model stands for those in it.
fn models_of(typed: &[PathBuf]) -> anyhow::Result<Vec<TypedModel>> {
    let mut all = Vec::new();
    for place in typed {
        let one = named(place);
        let found = match &one {
            TypedModel { name: None, place: Some(place), .. } => within(place)?,
            _ => Vec::new(),
        };
        if found.is_empty() {
            all.push(one);
        }
        for place in found {
            all.push(TypedModel { place: Some(place), name: None, is_found: true });
        }
    }
    if typed.is_empty() {
        all.push(TypedModel::default());
    }
    if all.len() > MOST {
        bail!("{} models are named, and at most {MOST} are served; name fewer", all.len());
    }
    Ok(all)
}

fn is_model(dir: &Path) -> bool {
    [MANIFEST_FILE, "config.json"].iter().any(|name| dir.join(name).exists())
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// A model with the name before `=`, if there is one and the whole is no path.
fn named(typed: &Path) -> TypedModel {
    if let Some(text) = typed.to_str()
        && !typed.exists()
        && let Some((name, place)) = text.split_once('=')
        && is_plain(name)
        && !place.is_empty()
    {
        let name = Some(name.to_owned());
        return TypedModel { place: Some(place.into()), name, is_found: false };
    }
    TypedModel { place: Some(typed.to_owned()), ..TypedModel::default() }
}

/// The models in a directory that is none itself, and in those below it, in the order of their names.
/// Nothing in any other place.
fn within(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !dir.is_dir() || is_model(dir) {
        return Ok(Vec::new());
    }
    let unread =
        |error| anyhow!("`{}` cannot be read ({error}); give the models themselves", dir.display());
    let mut found = ggufs(dir);
    for entry in dir.read_dir().map_err(unread)? {
        let below = entry.map_err(unread)?.path();
        if is_model(&below) {
            found.push(below);
        } else if below.is_dir() {
            found.extend(ggufs(&below));
        }
    }
    found.sort();
    Ok(found)
}

/// The complete GGUF models in a directory, each by its first file.
fn ggufs(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = dir.read_dir() else { return Vec::new() };
    let names = file_names(entries);
    let mut found = Vec::new();
    for files in gguf_models(names.iter().map(String::as_str)).into_values() {
        if let Some(first) = files.first()
            && is_whole(&files)
        {
            found.push(dir.join(first));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_before_an_equals_sign() {
        for (typed, name, place) in [
            ("a=/models/b", Some("a"), "/models/b"),
            ("qwen-3.5=Owner/Name:q8", Some("qwen-3.5"), "Owner/Name:q8"),
            ("Owner/Name", None, "Owner/Name"),
            ("https://host/path?a=b", None, "https://host/path?a=b"),
            ("dir/a=b", None, "dir/a=b"),
            ("=b", None, "=b"),
            ("a=", None, "a="),
        ] {
            let expected = TypedModel {
                place: Some(place.into()),
                name: name.map(str::to_owned),
                is_found: false,
            };
            assert_eq!(named(Path::new(typed)), expected, "{typed}");
        }
    }

    #[test]
    fn a_directory_stands_for_the_models_in_it() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        for file in [
            "b/manifest.json",
            "a/config.json",
            "c/notes.txt",
            "d/x.gguf",
            "d/y-00001-of-00002.gguf",
            "z-00001-of-00002.gguf",
            "z-00002-of-00002.gguf",
        ] {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = within(root).unwrap();
        assert_eq!(found, ["a", "b", "d/x.gguf", "z-00001-of-00002.gguf"].map(|at| root.join(at)));
        assert_eq!(within(&root.join("a")).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(within(&root.join("c")).unwrap(), Vec::<PathBuf>::new());
        let typed = [root.to_owned(), "other=Owner/Name".into()];
        let all = models_of(&typed).unwrap();
        assert_eq!(all.iter().filter(|model| model.is_found).count(), 4);
        assert_eq!(all[4].name.as_deref(), Some("other"));
    }
}
