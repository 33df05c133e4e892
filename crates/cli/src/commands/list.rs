//! `sws list`.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use serde::Serialize;
use sws::{Footprint, Model};
use sws_engine::PlanOptions;
use sws_format::{read_config, remedy};
use sws_hub::{
    GGUF, HubCache, Library, cache_variable, gguf_models, is_whole, library_variable, short_commit,
};

use super::print_report;
use super::rounded::about;
use crate::args;
use crate::here::{self, Here, all, file_names};
use crate::table::{table, wrapped};
use crate::terminal::note;

pub(crate) fn run(args: &args::ListArgs) -> anyhow::Result<ExitCode> {
    let library = Library::of_process();
    let library = library.map(|library| (library.dir().to_owned(), library_variable()));
    let cache = HubCache::of_process().map(|cache| (cache.dir().to_owned(), cache_variable()));
    for (dir, variable) in library.into_iter().chain(cache) {
        if let Err(error) = dir.read_dir()
            && error.kind() != ErrorKind::NotFound
        {
            let otherwise = format!("check {variable}");
            let remedy = remedy(&error, &otherwise);
            note!("sws: `{}` cannot be read ({error}); {remedy}", dir.display());
        }
    }
    let mut rows: Vec<ListRow> = all().into_iter().map(ListRow::of).collect();
    for dir in &args.dir {
        rows.extend(within(dir)?);
    }
    print_report(args.json, rows.as_slice(), text)
}

/// A model in one form. The fields of the JSON.
#[derive(Debug, Serialize)]
struct ListRow {
    model: String,
    form: String,
    /// The family, if it is known.
    model_type: Option<String>,
    bytes: u64,
    /// The smallest `--ram`.
    smallest_budget: Option<u64>,
    /// The smallest `--ram` at which no token reads from disk.
    in_memory_budget: Option<u64>,
    complete: bool,
    #[serde(skip)]
    completed_by: String,
    /// Reason why it cannot be run.
    problem: Option<String>,
}

impl ListRow {
    fn of(here: Here) -> ListRow {
        let mut row = ListRow {
            model: here.id.to_string(),
            form: here.form,
            model_type: None,
            bytes: here.bytes,
            smallest_budget: None,
            in_memory_budget: None,
            complete: here.path.is_some(),
            completed_by: here.completed_by,
            problem: None,
        };
        if let Some(path) = here.path
            && let Err(error) = row.describe(&path)
        {
            row.model_type = family(&path);
            row.problem = Some(error.to_string());
        }
        row
    }

    /// Fills in what the model's own files say.
    fn describe(&mut self, path: &Path) -> sws::Result<()> {
        let model = Model::open(path)?;
        let footprint = Footprint::of(&model, PlanOptions::default())?;
        self.model_type = Some(model.spec().model_type.to_string());
        self.smallest_budget = Some(footprint.smallest());
        self.in_memory_budget = footprint.in_memory();
        Ok(())
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.model.clone(),
            render(&self.form),
            self.model_type.clone().unwrap_or_default(),
            about(self.bytes),
            self.smallest_budget.map_or(String::new(), about),
            self.in_memory_budget.map_or(String::new(), about),
        ]
    }

    /// What hinders its use.
    fn remark(&self) -> Option<String> {
        let model = &self.model;
        let form = render(&self.form);
        match (self.complete, &self.problem) {
            (false, _) => {
                let by = &self.completed_by;
                Some(format!("{model} ({form}) is incomplete; {by} continues it\n"))
            }
            (true, Some(problem)) => Some(format!("{model} ({form}) cannot be run: {problem}\n")),
            (true, None) => None,
        }
    }
}

/// The GGUF files in a directory.
fn within(dir: &Path) -> anyhow::Result<Vec<ListRow>> {
    let entries = match dir.read_dir() {
        Ok(entries) => entries,
        Err(error) => {
            bail!("`{}` cannot be read ({error}); give another --dir", dir.display())
        }
    };
    let names = file_names(entries);
    let mut rows = Vec::new();
    for files in gguf_models(names.iter().map(String::as_str)).into_values() {
        let Some(first) = files.first() else { continue };
        let path = dir.join(first);
        let mut row = ListRow {
            model: path.display().to_string(),
            form: GGUF.to_owned(),
            model_type: None,
            bytes: here::size(dir, &files),
            smallest_budget: None,
            in_memory_budget: None,
            complete: is_whole(&files),
            completed_by: "its missing part".to_owned(),
            problem: None,
        };
        if row.complete
            && let Err(error) = row.describe(&path)
        {
            row.problem = Some(error.to_string());
        }
        rows.push(row);
    }
    Ok(rows)
}

/// A form with a commit of few digits, which find it.
fn render(form: &str) -> String {
    match form.rsplit_once('@') {
        Some((form, revision)) => format!("{form}@{}", short_commit(revision)),
        None => form.to_owned(),
    }
}

/// The family that a configuration names, whether it is supported or not.
fn family(path: &Path) -> Option<String> {
    let config = read_config(path).ok()?;
    config.entries.get("model_type")?.as_str().map(str::to_owned)
}

fn text(rows: &[ListRow]) -> String {
    if rows.is_empty() {
        return "no models yet; `sws pull` lists some to begin with\n".to_owned();
    }
    let cells: Vec<Vec<String>> = rows.iter().map(ListRow::cells).collect();
    let heading = ["model", "<format", "<family", "size", "minimum --ram", "fully in memory"];
    let mut text = table(&heading, &cells);
    for remark in rows.iter().filter_map(ListRow::remark) {
        text += &format!("\n{}", wrapped(&remark));
    }
    text
}
