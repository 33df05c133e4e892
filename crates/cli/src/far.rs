//! Models at an address.

use std::path::Path;

use anyhow::bail;
use sws::{Model, RamBudget};
use sws_hub::ModelName;

/// The text of an address. `None` for a path, and for the page of a model on the hub.
fn address(typed: &Path) -> Option<&str> {
    let text = typed.to_str()?;
    // One of another scheme is one, too, and refused as such: it may have a signature.
    (text.contains("://") && !typed.exists() && text.parse::<ModelName>().is_err()).then_some(text)
}

/// Opens the model at an address, with at most so many bytes for its shards, for a budget. `None` if
/// what was typed is none.
#[cfg(feature = "pull")]
pub(crate) fn open(
    typed: &Path,
    cache: Option<u64>,
    ram: Option<RamBudget>,
) -> anyhow::Result<Option<Model>> {
    use std::sync::Arc;

    use sws::ReadingRoom;
    use sws_far::{Far, FarOptions, FarOrigin};

    use crate::process;

    let Some(text) = address(typed) else { return Ok(None) };
    let manifest = ram.and_then(ReadingRoom::of).map(|room| room.left);
    let options = FarOptions { limit: cache, manifest, ..FarOptions::default() };
    let far = Arc::new(Far::open(FarOrigin::new(text.parse()?)?, &options)?);
    let dir = far.dir().to_owned();
    let manifest = Arc::clone(far.manifest());
    Ok(Some(Model::open_supplied(&dir, manifest, far, process::heap)?))
}

/// Refuses an address in a build without a network.
#[cfg(not(feature = "pull"))]
pub(crate) fn open(
    typed: &Path,
    _: Option<u64>,
    _: Option<RamBudget>,
) -> anyhow::Result<Option<Model>> {
    match address(typed) {
        None => Ok(None),
        Some(_) => bail!(
            "models at an address need the feature pull, without which this sws was built; build it with `cargo build --release`"
        ),
    }
}

/// An address without a query, and without what is before an @: a signature and a password, perhaps.
fn render(address: &str) -> String {
    let address = address.split(['?', '#']).next().unwrap_or("");
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    format!("{scheme}://{}", rest.rsplit('@').next().unwrap_or(""))
}

/// A message in which the addresses among these arguments are without signatures and passwords.
pub(crate) fn without_secrets<'a>(
    message: String,
    typed: impl IntoIterator<Item = &'a str>,
) -> String {
    let in_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let mut message = message;
    for typed in typed {
        let Some(at) = typed.find("://") else { continue };
        let scheme = typed[..at].trim_end_matches(in_scheme).len();
        message = message.replace(&typed[scheme..], &render(&typed[scheme..]));
    }
    message
}

/// Refuses an address where a command needs all shards on this machine.
pub(crate) fn refuse(typed: &Path) -> anyhow::Result<()> {
    match address(typed) {
        None => Ok(()),
        Some(text) => bail!(
            "`{}` is an address, and this command needs a model on this machine; run, chat, serve, forward, certify, plan and doctor take an address",
            render(text)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::without_secrets;

    #[test]
    fn secrets_of_typed_addresses_are_left_out() {
        let typed =
            ["rm", "--at=https://me:hidden@host/a?sig=hidden", "s3://bucket/a#hidden", "://?"];
        let cases = [
            ("`https://me:hidden@host/a?sig=hidden` is no name", "`https://host/a` is no name"),
            ("s3://bucket/a#hidden, https://other/?a", "s3://bucket/a, https://other/?a"),
            ("nothing", "nothing"),
        ];
        for (message, expected) in cases {
            assert_eq!(without_secrets(message.to_owned(), typed), expected);
        }
    }
}
