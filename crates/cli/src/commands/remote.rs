//! Models that are on the hub and not on this machine.

#[cfg(feature = "pull")]
use std::io::IsTerminal;

use serde::Serialize;
use sws::Outline;
#[cfg(feature = "pull")]
use sws_hub::{Client, HubError, Listing, ModelName};

use super::size;
#[cfg(feature = "pull")]
use crate::terminal::note;

/// A model on the hub.
#[derive(Debug, Serialize)]
pub(crate) struct Remote {
    model: String,
    download_bytes: u64,
    /// Bytes of the largest file, which the disk has beside the shards for a while.
    #[serde(skip)]
    largest_bytes: u64,
    /// Free where `sws pull` makes shards.
    disk_free_bytes: Option<u64>,
}

impl Remote {
    /// The download in one line.
    pub(crate) fn line(&self) -> String {
        let free = self.disk_free_bytes.map(|free| format!(", {} free for its shards", size(free)));
        format!(
            "not on this machine: {} to download{}\n",
            size(self.download_bytes),
            free.unwrap_or_default()
        )
    }

    /// The same for another machine, of whose disk nothing is known.
    pub(crate) fn elsewhere(self) -> Remote {
        Remote { disk_free_bytes: None, ..self }
    }

    /// False if the disk has no room for shards of this size and a file of the checkpoint.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        let needed = bytes.saturating_add(self.largest_bytes);
        self.disk_free_bytes.is_none_or(|free| needed <= free)
    }

    /// The command that downloads it, in a format that is not the default one where only that fits.
    pub(crate) fn next(&self, form: Option<&str>) -> String {
        let form = form.map_or(String::new(), |form| format!(" --as {form}"));
        format!("next: sws pull {}{form}\n", self.model)
    }
}

/// Lists the files of a model that is not on this machine, as `missing` says of it. What was typed may
/// be a path with an error in it, so that there is one attempt, and `missing` is what failures say.
#[cfg(feature = "pull")]
pub(crate) fn list(client: &Client, missing: &sws::Error) -> anyhow::Result<Option<Listing>> {
    let sws::Error::NotHere { name, path, .. } = missing else { return Ok(None) };
    if std::io::stderr().is_terminal() {
        note!("sws: asking the hub for `{}`", name.id);
    }
    let revision = name.revision.as_deref().unwrap_or("main");
    client.list_once(&name.id, revision).map(Some).map_err(|error| match error {
        HubError::Connection { reason, .. } => {
            anyhow::anyhow!("{missing} (the hub cannot be reached: {reason})")
        }
        HubError::NoModel { page, .. } => anyhow::anyhow!(
            "`{}` is neither a path nor a model on this machine, and the hub has none of that name that you may see; check the path, or the name at {page}, or set HF_TOKEN if it is private",
            path.display()
        ),
        error => error.into(),
    })
}

/// Asks the hub about a model that is not on this machine, as `missing` says of it. `None` if the
/// environment forbids that, or its files have no configuration. Encodings and GGUF files
/// (`OWNER/NAME:TAG`) have to be here.
#[cfg(feature = "pull")]
pub(crate) fn ask(missing: &sws::Error) -> anyhow::Result<Option<(Outline, Remote)>> {
    use std::path::Path;

    use sws_hub::{Environment, Library, free_space, has_safetensors, select};
    use sws_store::Configuration;

    let sws::Error::NotHere { name, snapshots, .. } = missing else { return Ok(None) };
    // What was typed may mean one of them, as its message says.
    let typed = name.revision.as_deref().unwrap_or("");
    let is_meant = |it: &ModelName| it.revision.as_deref().unwrap_or("").starts_with(typed);
    if snapshots.iter().any(is_meant) || !name.id.has_owner() || name.tag.is_some() {
        return Ok(None);
    }
    let environment = Environment::of_process()?;
    if environment.offline {
        return Ok(None);
    }
    let client = Client::new(&environment)?;
    let Some(listing) = list(&client, missing)? else { return Ok(None) };
    let Some(config) = listing.file("config.json").filter(|_| has_safetensors(&listing)) else {
        return Ok(None);
    };
    let config = Configuration::from_json("config.json", &client.read(&listing, config)?)
        .map_err(|damaged| anyhow::anyhow!("`{name}`: {damaged}"))?;
    let outline = Outline::of(Path::new(&name.to_string()), &config)?;
    let selection = select(&listing, None, &mut |index| client.read(&listing, index))?;
    let place = Library::of_process();
    let free = place.map(|library| free_space(library.dir())).transpose()?.flatten();
    let remote = Remote {
        model: name.to_string(),
        download_bytes: selection.weights.len(),
        largest_bytes: selection.weights.files().iter().map(|file| file.len).max().unwrap_or(0),
        disk_free_bytes: free,
    };
    Ok(Some((outline, remote)))
}

/// Without downloads nothing is known of such models.
#[cfg(not(feature = "pull"))]
pub(crate) fn ask(_: &sws::Error) -> anyhow::Result<Option<(Outline, Remote)>> {
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
            largest_bytes: 1 << 20,
            disk_free_bytes: free,
        };
        let cases = [
            (Some(1 << 30), false, "2.00 GiB to download, 1.00 GiB free for its shards\n"),
            (Some(2 << 30), false, "2.00 GiB to download, 2.00 GiB free for its shards\n"),
            (Some(3 << 30), true, "2.00 GiB to download, 3.00 GiB free for its shards\n"),
            (None, true, "2.00 GiB to download\n"),
        ];
        for (free, fits, line) in cases {
            assert_eq!(remote(free).fits(2 << 30), fits);
            assert_eq!(remote(free).line(), format!("not on this machine: {line}"));
        }
    }
}
