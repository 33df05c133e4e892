//! Refusals before anything large is downloaded.

use anyhow::{anyhow, bail};
use sws_hub::{Client, HubError, Listing, ModelName, Selection};
use sws_store::shard::JOURNAL;
use sws_store::{Configuration, MANIFEST_FILE};

use super::Pull;
use crate::args::{self, Form, encoding};

/// Refuses a name and options that contradict each other.
pub(super) fn check(args: &args::Pull, name: &ModelName) -> anyhow::Result<()> {
    let tagged = name.tag.as_deref().and_then(|tag| encoding(tag).ok());
    match (tagged, args.form) {
        (Some(tagged), Some(form)) if form != Form::Shards(tagged) => {
            bail!("`{name}` names another encoding than --as; leave out one of them")
        }
        _ => {}
    }
    match (&name.revision, &args.revision) {
        (Some(named), Some(typed)) if named != typed => {
            bail!("`{name}` names another revision than --revision; leave out one of them")
        }
        _ => Ok(()),
    }
}

impl Pull<'_> {
    /// Refuses a model that could not be run, before anything large is downloaded.
    pub(super) fn check_supported(
        &self,
        client: &Client,
        listing: &Listing,
        selection: &Selection,
    ) -> anyhow::Result<()> {
        let config = selection.small.iter().find(|file| file.name == "config.json");
        if let (Some(config), true) = (config, self.args.form != Some(Form::Stored)) {
            let json = client.read(listing, config)?;
            let config = Configuration::from_json("config.json", &json)
                .map_err(|damaged| anyhow!("`{}`: {damaged}", self.name))?;
            sws_model::naming(&config).map_err(|why| anyhow!("`{}`: {why}", self.name))?;
        }
        Ok(())
    }

    /// Refuses a directory for shards that holds something else.
    pub(super) fn check_out(&self) -> anyhow::Result<()> {
        let out = self.out()?;
        let ours = [MANIFEST_FILE, JOURNAL].iter().any(|name| out.join(name).is_file());
        if !ours && out.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            let what = "something else than this download".to_owned();
            return Err(HubError::Foreign { dir: out, what }.into());
        }
        Ok(())
    }
}
