//! Models that are on the hub and not on this machine.

#[cfg(feature = "pull")]
use std::io::IsTerminal;
use std::path::PathBuf;

use serde::Serialize;
use sws::Outline;
#[cfg(feature = "pull")]
use sws_format::Configuration;
use sws_hub::ModelName;
#[cfg(feature = "pull")]
use sws_hub::{Client, HubError, HubFile, Listing, ModelId, RepositoryFiles};
use sws_kernels::Encoding;

use super::size;
use crate::args::encoding;
use crate::atomic_file::TemporaryDir;
#[cfg(feature = "pull")]
use crate::interrupt::Ending;
#[cfg(feature = "pull")]
use crate::terminal::note;

/// A model on the hub.
#[derive(Debug, Serialize)]
pub(crate) struct Remote {
    model: String,
    download_bytes: u64,
    /// Bytes of weight files that the disk has beside the shards for a while.
    #[serde(skip)]
    beside_bytes: u64,
    /// Free where `sws pull` makes shards, or keeps GGUF files.
    disk_free_bytes: Option<u64>,
}

/// What is known of a model that is not on this machine, or not in the format that was named.
#[derive(Debug)]
pub(crate) enum RemoteModel {
    /// The configuration of a checkpoint, and the encoding of shards that was named.
    Outline(Box<Outline>, Option<Encoding>),
    /// The headers of its GGUF files.
    #[cfg_attr(not(feature = "pull"), expect(dead_code, reason = "the hub is not asked"))]
    Sketch(Sketch),
}

/// The headers of the GGUF files of a model, in files as long as these, which go with it.
#[derive(Debug)]
pub(crate) struct Sketch {
    dir: TemporaryDir,
    name: String,
    /// Path of the model.
    pub(crate) path: PathBuf,
    #[cfg(feature = "pull")]
    _ending: Ending,
}

impl Sketch {
    /// The error with the name of the model in place of a path that nobody typed.
    pub(crate) fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        let dir = self.dir.path().display().to_string();
        match error.to_string() {
            text if text.contains(&dir) => anyhow::anyhow!("{}", text.replace(&dir, &self.name)),
            _ => error,
        }
    }
}

impl Remote {
    /// The download in one line.
    pub(crate) fn line(&self) -> String {
        let free = match self.disk_free_bytes {
            Some(free) => format!(", {} free for it", size(free)),
            None => String::new(),
        };
        format!("not on this machine: {} to download{free}\n", size(self.download_bytes))
    }

    /// The same for another machine, of whose disk nothing is known.
    pub(crate) fn elsewhere(self) -> Remote {
        Remote { disk_free_bytes: None, ..self }
    }

    /// False if the disk has no room for shards of this size and the files beside them.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        let needed = bytes.saturating_add(self.beside_bytes);
        needed <= self.disk_free_bytes.unwrap_or(u64::MAX)
    }

    /// The commands for a disk without room for any format.
    pub(crate) fn next_disk(&self) -> String {
        format!("next: make room, or with DIR on another disk: sws pull {} --out DIR\n", self.model)
    }

    /// The command that downloads it, in a format that is not the default one where only that fits.
    pub(crate) fn next(&self, form: Option<&str>) -> String {
        match form {
            Some(form) => format!("next: sws pull {} --as {form}\n", self.model),
            None => format!("next: sws pull {}\n", self.model),
        }
    }
}

/// What is known of a model that is not on this machine, as `missing` says of it: what other shards or
/// the checkpoint here tell of those that were named (`OWNER/NAME:q4`), or else the hub.
pub(crate) fn found(missing: &sws::Error) -> anyhow::Result<Option<(RemoteModel, Option<Remote>)>> {
    if let Some(found) = in_another_format(missing) {
        return Ok(Some((found, None)));
    }
    Ok(ask(missing)?.map(|(found, remote)| (found, Some(remote))))
}

fn in_another_format(missing: &sws::Error) -> Option<RemoteModel> {
    let sws::Error::NotHere { name, .. } = missing else { return None };
    let named = encoding_of(name)?;
    let bare = ModelName { tag: None, ..ModelName::clone(name) };
    let outline = Outline::read(sws::locate(bare.to_string()).ok()?).ok()?;
    Some(RemoteModel::Outline(Box::new(outline), Some(named)))
}

/// The encoding of shards that the tag of a name is.
pub(crate) fn encoding_of(name: &ModelName) -> Option<Encoding> {
    encoding(name.tag.as_deref()?).ok()
}

/// The configuration of a model that has one in a file.
#[cfg(feature = "pull")]
pub(crate) fn config(
    name: &ModelName,
    client: &Client,
    listing: &Listing,
    selection: &RepositoryFiles,
) -> anyhow::Result<Option<Configuration>> {
    let Some(file) = selection.small.iter().find(|file| file.name == "config.json") else {
        return Ok(None);
    };
    match Configuration::from_json("config.json", &client.read(listing, file)?) {
        Ok(config) => Ok(Some(config)),
        Err(damaged) => anyhow::bail!("`{name}`: {damaged}"),
    }
}

/// Says on a terminal that the hub is asked, once: its first answer may take seconds.
#[cfg(feature = "pull")]
pub(crate) fn asking(id: &ModelId) {
    static SAID: std::sync::Once = std::sync::Once::new();
    if std::io::stderr().is_terminal() {
        SAID.call_once(|| note!("sws: asking the hub for `{id}`"));
    }
}

/// Bytes of the weight files that the disk has at a time, beside the shards made of them: two, as a
/// piece may begin in one and end in the next.
#[cfg(feature = "pull")]
pub(crate) fn at_a_time(files: impl Iterator<Item = u64>) -> u64 {
    let mut files: Vec<u64> = files.collect();
    files.sort_unstable();
    files.iter().rev().take(2).copied().fold(0, u64::saturating_add)
}

/// Lists the files of a model that is not on this machine, as `missing` says of it. What was typed may
/// be a path with an error in it, so that there is one attempt, and `missing` is what failures say.
#[cfg(feature = "pull")]
pub(crate) fn list(client: &Client, missing: &sws::Error) -> anyhow::Result<Option<Listing>> {
    let sws::Error::NotHere { name, path, .. } = missing else { return Ok(None) };
    asking(&name.id);
    let revision = name.revision.as_deref().unwrap_or("main");
    match client.list_once(&name.id, revision) {
        Ok(listing) => Ok(Some(listing)),
        Err(HubError::Connection { reason, .. }) => {
            anyhow::bail!("{missing} (the hub cannot be reached: {reason})")
        }
        Err(HubError::NoModel { page, .. }) => anyhow::bail!(
            "`{}` is neither a path nor a model on this machine, and the hub has none of that name that you may see; check the path, or the name at {page}, or set HF_TOKEN if it is private",
            path.display()
        ),
        Err(error) => Err(error.into()),
    }
}

/// Asks the hub about a model that is not on this machine, as `missing` says of it. `None` if the
/// environment forbids that, or a snapshot is there that may be meant.
#[cfg(feature = "pull")]
fn ask(missing: &sws::Error) -> anyhow::Result<Option<(RemoteModel, Remote)>> {
    use std::path::Path;

    use sws_hub::{Environment, Library, WeightFiles, free_space, has_safetensors, select};

    let sws::Error::NotHere { name, snapshots, .. } = missing else { return Ok(None) };
    // What was typed may mean one of them, as its message says.
    let typed = name.revision.as_deref().unwrap_or("");
    let is_meant = |it: &ModelName| it.revision.as_deref().unwrap_or("").starts_with(typed);
    let environment = Environment::of_process()?;
    if environment.offline || snapshots.iter().any(is_meant) || !name.id.has_owner() {
        return Ok(None);
    }
    let client = Client::new(&environment)?;
    let Some(listing) = list(&client, missing)? else { return Ok(None) };
    // Repositories with both have their own shards of an encoding.
    let named = if has_safetensors(&listing) { encoding_of(name) } else { None };
    let tag = if named.is_none() { name.tag.as_deref() } else { None };
    let selection = select(&listing, tag, &mut |index| client.read(&listing, index))?;
    let (found, place) = match &selection.weights {
        WeightFiles::Safetensors(_) => {
            let config = config(name, &client, &listing, &selection)?;
            let Some(config) = config else { return Ok(None) };
            let outline = Outline::of(Path::new(&name.to_string()), &config)?;
            let place = Library::of_process().map(|library| library.dir().to_owned());
            (RemoteModel::Outline(Box::new(outline), named), place)
        }
        WeightFiles::Gguf(files) => {
            let _ending = Ending::at_a_signal("interrupted; nothing is kept")?;
            let dir = TemporaryDir::for_files(files.iter().map(HubFile::last_name))?;
            let path = client.sketch_gguf(&listing, files, dir.path())?;
            let Some(path) = path else { return Ok(None) };
            let sketch = Sketch { dir, name: name.id.to_string(), path, _ending };
            (RemoteModel::Sketch(sketch), environment.cache)
        }
    };
    let remote = Remote {
        model: name.to_string(),
        download_bytes: selection.weights.len(),
        beside_bytes: at_a_time(selection.weights.files().iter().map(|file| file.len)),
        disk_free_bytes: match place {
            Some(place) => free_space(&place)?,
            None => None,
        },
    };
    Ok(Some((found, remote)))
}

/// Without downloads nothing is known of such models.
#[cfg(not(feature = "pull"))]
fn ask(_: &sws::Error) -> anyhow::Result<Option<(RemoteModel, Remote)>> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_on_the_disk_is_shown_and_judged() {
        let remote = |free| Remote {
            model: "own/model".to_owned(),
            download_bytes: 2 << 30,
            beside_bytes: 1 << 20,
            disk_free_bytes: free,
        };
        let cases = [
            (Some(1 << 30), false, "2.00 GiB to download, 1.00 GiB free for it\n"),
            (Some(2 << 30), false, "2.00 GiB to download, 2.00 GiB free for it\n"),
            (Some(3 << 30), true, "2.00 GiB to download, 3.00 GiB free for it\n"),
            (None, true, "2.00 GiB to download\n"),
        ];
        for (free, fits, line) in cases {
            assert_eq!(remote(free).fits(2 << 30), fits);
            assert_eq!(remote(free).line(), format!("not on this machine: {line}"));
        }
    }
}
