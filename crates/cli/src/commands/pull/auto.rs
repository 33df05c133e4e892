//! `sws pull --as auto`.

use std::path::Path;

use sws::Outline;
use sws_hub::{Client, Environment, HubError, ModelName, WeightFiles, form, staging};
use sws_kernels::Encoding;
use sws_shard::encoding_in;

use super::Pull;
use crate::args::{self, PullForm};
use crate::commands::{choice, remote};
use crate::terminal::note;

/// The arguments with an encoding in place of `auto`: that of shards which are there or were begun, so
/// that the same command goes on with them, or else the one that is planned to be fastest.
pub(super) fn chosen(
    args: &args::PullArgs,
    name: &ModelName,
    environment: &Environment,
) -> anyhow::Result<args::PullArgs> {
    if args.form != Some(PullForm::Auto) {
        return Ok(args.clone());
    }
    let pull = Pull::new(args, name, environment);
    let encoding = match pull.begun_as() {
        Some(encoding) => Some(encoding),
        None => match pull.outline(environment)? {
            Some(outline) => Some(choice::encoding(&outline, args.ram)?),
            None => {
                note!("sws: `{name}` has no configuration to plan with, so --as auto is left out");
                None
            }
        },
    };
    Ok(args::PullArgs { form: encoding.map(PullForm::Shards), ..args.clone() })
}

impl Pull<'_> {
    /// The encoding of shards of the model in their place, or in one that was typed.
    fn begun_as(&self) -> Option<Encoding> {
        if let Some(out) = &self.args.out {
            return encoding_in(out);
        }
        let library = self.library.as_ref()?;
        for encoding in [Encoding::Bf12, Encoding::Bf11, Encoding::Bf16] {
            let recorded = library.path(self.id, &form(encoding.name(), Some(self.revision)));
            if recorded.exists() || staging(&recorded).exists() {
                return Some(encoding);
            }
        }
        None
    }

    /// The model without its weights, from the cache or the hub. `None` if there is no configuration,
    /// as with GGUF files.
    fn outline(&self, environment: &Environment) -> anyhow::Result<Option<Outline>> {
        if environment.offline {
            let Some(dir) = self.snapshot() else {
                return Err(HubError::Offline { id: self.id.clone() }.into());
            };
            let config = dir.join("config.json");
            return Ok(if config.exists() { Some(Outline::read(config)?) } else { None });
        }
        let client = Client::new(environment)?;
        remote::asking(self.id);
        let listing = client.list(self.id, self.revision)?;
        let selection = self.select(&client, &listing)?;
        if matches!(selection.weights, WeightFiles::Gguf(_)) {
            return Ok(None);
        }
        let config = remote::config(self.name, &client, &listing, &selection)?;
        let Some(config) = config else { return Ok(None) };
        Ok(Some(Outline::of(Path::new(&self.name.to_string()), &config)?))
    }
}
