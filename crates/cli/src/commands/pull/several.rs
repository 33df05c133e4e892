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

impl GgufChoice {
    /// True if no token reads from disk with this budget.
    fn fits(&self, budget: Option<u64>) -> bool {
        budget.is_some_and(|budget| self.in_memory <= budget)
    }
}

impl Pull<'_> {
    /// Prints the models of a repository with their sizes, marks those that fit into the memory of this
    /// machine, and proposes one.
    pub(super) fn print_models(&self, client: &Client, listing: &Listing) -> anyhow::Result<()> {
        if self.args.json {
            return Ok(());
        }
        let names: Vec<&str> = listing.files.iter().map(|file| file.name.as_str()).collect();
        let mut models: Vec<(&str, Vec<HubFile>)> = Vec::new();
        for (model, parts) in gguf_models(names.iter().copied()) {
            let mut files = Vec::new();
            for part in parts {
                files.extend(listing.file(part).cloned());
            }
            models.push((model, files));
        }
        models.sort_by_key(|(_, files)| bytes(files));
        let beside = models.first().and_then(|(_, files)| beside(client, listing, files));
        let mut choices = Vec::with_capacity(models.len());
        for (model, files) in &models {
            let bytes = bytes(files);
            let in_memory = bytes.saturating_add(beside.unwrap_or(BESIDE));
            let tag = gguf_tag(&names, model).unwrap_or(model).to_owned();
            choices.push(GgufChoice { tag, bytes, in_memory });
        }
        let budget = SystemMemory::now()
            .map(|memory| RamBudget::Auto.resolve(memory.total, memory.available, 0));
        print(&text(&self.id.to_string(), &choices, budget))
    }
}

/// Bytes of all of some files.
pub(super) fn bytes(files: &[HubFile]) -> u64 {
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
    let best = choices.iter().rposition(|choice| choice.fits(budget));
    let mut cells = Vec::new();
    for choice in choices.iter().take(SHOWN) {
        let place = if choice.fits(budget) { "in memory" } else { "from disk" };
        let command = format!("sws pull {id}:{}", choice.tag);
        cells.push(vec![size(choice.bytes), size(choice.in_memory), place.to_owned(), command]);
    }
    let mut text = table(&["download", "in memory with", "<here", "<command"], &cells);
    if choices.len() > SHOWN {
        text += &format!("and {} larger ones\n", choices.len() - SHOWN);
    }
    if let Some(budget) = budget
        && let Some(smallest) = choices.first()
    {
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
