//! `sws link`.

use std::process::ExitCode;

use anyhow::bail;
use sws::Model;
use sws_hub::{GGUF, Library};

use super::print;
use crate::args;

pub(crate) fn run(args: &args::LinkArgs) -> anyhow::Result<ExitCode> {
    let file = args.file.display();
    if !args.file.is_file() {
        bail!("`{file}` is not a file; give a GGUF file");
    }
    // What cannot be run gets no name.
    let model = Model::open(&args.file)?;
    if model.gguf_stem().is_none() {
        bail!("`{file}` is not a GGUF file; shards and checkpoints are found by their directory");
    }
    let Some(library) = Library::of_process() else {
        bail!("there is no place for names; set HOME, or SWS_MODELS to a directory");
    };
    let name = &args.name;
    let shards = library.of(name);
    if shards.iter().any(|shards| shards.form != GGUF) {
        bail!("`{name}` is the name of shards on this machine; choose another name");
    }
    library.record(name, GGUF, &args.file)?;
    print(&format!("`{name}` is {file}; `sws chat {name}` talks to it\n"))?;
    Ok(ExitCode::SUCCESS)
}
