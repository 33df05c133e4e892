//! The GGUF models of a repository that has several, for the user to choose from.

use sws::{Footprint, Model, RamBudget};
use sws_engine::PlanOptions;
use sws_hub::{Client, HubFile, Listing, gguf_models, gguf_tag};
use sws_store::SystemMemory;

use super::{Pull, size};
use crate::atomic_file::TemporaryDir;
use crate::commands::print;
use crate::process;
use crate::table::table;

/// Most models that are shown: the largest that fit and some more.
const SHOWN: usize = 40;
/// Memory besides the weights of a model, where its header does not tell.
const BESIDE: u64 = 1 << 30;

/// A model to choose.
#[derive(Debug)]
struct GgufChoice {
    /// What follows the colon.
    tag: String,
    bytes: u64,
    /// The smallest `--ram` with which no token reads from disk.
    in_memory: u64,
}

impl Pull<'_> {
    /// Prints the models of a repository with their sizes, marks those that fit into the memory of this
    /// machine, and proposes one.
    pub(super) fn print_models(&self, client: &Client, listing: &Listing) -> anyhow::Result<()> {
        if self.args.json {
            return Ok(());
        }
        let names: Vec<&str> = listing.files.iter().map(|file| file.name.as_str()).collect();
        let mut models: Vec<(&str, Vec<HubFile>)> = gguf_models(names.iter().copied())
            .into_iter()
            .map(|(model, files)| {
                let files = files.into_iter().filter_map(|file| listing.file(file));
                (model, files.cloned().collect())
            })
            .collect();
        models.sort_by_key(|(_, files)| bytes(files));
        let beside = models.first().and_then(|(_, files)| beside(client, listing, files));
        let choices: Vec<GgufChoice> = models
            .iter()
            .map(|(model, files)| {
                let bytes = bytes(files);
                let in_memory = bytes.saturating_add(beside.unwrap_or(BESIDE));
                let tag = gguf_tag(&names, model).unwrap_or(model).to_owned();
                GgufChoice { tag, bytes, in_memory }
            })
            .collect();
        let budget = SystemMemory::now()
            .map(|memory| RamBudget::Auto.resolve(memory.total, memory.available, 0));
        print(&text(&self.id.to_string(), &choices, budget))
    }
}

fn bytes(files: &[HubFile]) -> u64 {
    files.iter().map(|file| file.len).fold(0, u64::saturating_add)
}

/// Memory besides the weights with which no token of a model reads from disk, as its header tells. All
/// models of a repository have about the same.
fn beside(client: &Client, listing: &Listing, files: &[HubFile]) -> Option<u64> {
    let dir = TemporaryDir::for_files(files.iter().map(HubFile::last_name)).ok()?;
    let path = client.sketch_gguf(listing, files, dir.path()).ok()??;
    let model = Model::open_counted(&path, None, process::heap).ok()?;
    let footprint = Footprint::of(&model, PlanOptions::default()).ok()?;
    Some(footprint.in_memory()?.saturating_sub(bytes(files)))
}

/// The models as a table, and the one for a machine with this budget: the largest whose weights all
/// fit, or else the smallest, as it reads least from disk.
fn text(id: &str, choices: &[GgufChoice], budget: Option<u64>) -> String {
    let fits = |choice: &GgufChoice| budget.is_some_and(|budget| choice.in_memory <= budget);
    let best = choices.iter().rposition(fits);
    let cells: Vec<Vec<String>> = choices
        .iter()
        .take(SHOWN)
        .map(|choice| {
            let place = if fits(choice) { "in memory" } else { "from disk" };
            let ram = size(choice.in_memory);
            vec![size(choice.bytes), ram, place.to_owned(), format!("sws pull {id}:{}", choice.tag)]
        })
        .collect();
    let mut text = table(&["download", "in memory with", "<here", "<command"], &cells);
    if let Some(more) = choices.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        text += &format!("and {more} larger ones\n");
    }
    if let (Some(budget), Some(smallest)) = (budget, choices.first()) {
        let (choice, why) = match best {
            Some(best) => (&choices[best], "the largest that stays in"),
            None => (smallest, "the smallest, as none stays in"),
        };
        text += &format!(
            "\nfor this machine: sws pull {id}:{} ({why} {} of memory)\n",
            choice.tag,
            size(budget)
        );
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_fits_is_proposed() {
        const GIB: u64 = 1 << 30;
        let choice = |tag: &str, gib| GgufChoice {
            tag: tag.to_owned(),
            bytes: gib * GIB,
            in_memory: (gib + 1) * GIB,
        };
        let choices = [choice("Q2_K", 3), choice("Q4_K_M", 5), choice("Q8_0", 9)];
        for (budget, proposed, in_memory) in [
            (Some(2), Some("Q2_K"), 0),
            (Some(6), Some("Q4_K_M"), 2),
            (Some(64), Some("Q8_0"), 3),
            (None, None, 0),
        ] {
            let text = text("own/m", &choices, budget.map(|gib| gib * GIB));
            let line = text.lines().find_map(|line| line.strip_prefix("for this machine: "));
            let command = proposed.map(|tag| format!("sws pull own/m:{tag} ("));
            assert_eq!(line.is_some(), command.is_some(), "{text}");
            assert!(command.is_none_or(|command| line.unwrap().starts_with(&command)), "{text}");
            let marked = |line: &&str| line.contains("  in memory  ") && line.contains("own/m:");
            assert_eq!(text.lines().filter(marked).count(), in_memory, "{text}");
        }
        let many: Vec<GgufChoice> = (0..50).map(|n| choice(&format!("Q{n}"), n)).collect();
        assert!(text("own/m", &many, None).contains("and 10 larger ones"));
    }
}
