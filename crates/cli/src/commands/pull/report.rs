//! The last words of `sws pull`.

use std::path::Path;

use serde_json::json;
use sws::Model;
use sws_hub::ModelName;

use super::{Obtained, Pull};
use crate::commands::shard::before;
use crate::commands::{print, print_json, size};

impl Pull<'_> {
    /// Prints what is there now, and the command that uses it.
    pub(super) fn report(&self, obtained: &Obtained) -> anyhow::Result<()> {
        let Obtained { path, sharded, how } = obtained;
        if self.args.json {
            let mut outcome = json!({
                "model": self.name.to_string(),
                "path": path,
                "encoding": null,
                "shards": null,
                "found": null,
                "damaged": null,
                "stored_bytes": null,
                "source_bytes": null,
            });
            if let Some(done) = sharded {
                outcome["encoding"] = self.encoding.name().into();
                outcome["shards"] = done.shards.into();
                outcome["found"] = done.found.into();
                outcome["damaged"] = done.damaged.into();
                outcome["stored_bytes"] = done.stored_bytes.into();
                outcome["source_bytes"] = done.source_bytes.into();
            }
            return print_json(&outcome);
        }
        let what = match sharded {
            Some(done) => {
                format!("{} shards{}, {}, ", done.shards, before(done), size(done.stored_bytes))
            }
            None => String::new(),
        };
        // The id finds what lies in its own place, or does with the encoding.
        let with_form = ModelName {
            tag: Some(self.encoding.name().to_owned()),
            revision: self.other_revision().map(str::to_owned),
            ..self.name.clone()
        };
        let names = [self.name.to_string(), with_form.to_string()];
        let shown = path.display().to_string();
        let model = names.iter().find(|name| finds(name, path)).unwrap_or(&shown);
        // A model that cannot be opened says why when it is run.
        let opened = Model::open(&obtained.path);
        let talks = matches!(opened, Ok(model) if model.chat_template().is_ok());
        let next = if talks { "chat" } else { "run" };
        print(&format!("{what}{how}: {shown}\nsws {next} {model}\n"))
    }
}

/// True if a name finds the model at a path.
fn finds(name: &str, path: &Path) -> bool {
    let Ok(found) = sws::locate(name) else { return false };
    match (found.canonicalize(), path.canonicalize()) {
        (Ok(found), Ok(path)) => found == path,
        _ => false,
    }
}
