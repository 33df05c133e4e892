//! `sws config`.

use std::path::Path;
use std::process::ExitCode;

use super::print;
use crate::args;
use crate::config::{ConfigFile, place};

pub(crate) fn run(typed: Option<&Path>) -> anyhow::Result<ExitCode> {
    let text = match ConfigFile::read(typed)? {
        Some(config) => {
            let mut command = args::command();
            command.build();
            config.check(&command)?;
            format!("# {}\n{config}", config.path().display())
        }
        None => match place() {
            Some(path) => format!("# {} is not there; it could have\n{EXAMPLE}", path.display()),
            None => format!("# there is no home directory; --config FILE could have\n{EXAMPLE}"),
        },
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

const EXAMPLE: &str = "\
# [all]
# ram = \"12GiB\"
#
# [command.chat]
# system = \"Answer briefly.\"
#
# # whichever way it is typed, also by its path
# [model.\"Qwen/Qwen3-30B-A3B\"]
# context = 8192
# no-think = true
";
