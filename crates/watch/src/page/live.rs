//! The page of a server: three files, which load nothing else.

/// The page.
pub const HTML: &str = include_str!("live.html");
/// Its styles.
pub const CSS: &str =
    concat!(include_str!("page.css"), include_str!("live.css"), include_str!("chat.css"));
/// Its program. The last file starts it.
pub const JS: &str = concat!(
    include_str!("draw.js"),
    include_str!("server.js"),
    include_str!("inline.js"),
    include_str!("markdown.js"),
    include_str!("storage.js"),
    include_str!("dialogs.js"),
    include_str!("settings.js"),
    include_str!("messages.js"),
    include_str!("chat.js"),
    include_str!("conversations.js"),
    include_str!("transfer.js"),
    include_str!("tokens.js"),
    include_str!("engine.js"),
    include_str!("live.js"),
);
/// What it may load and call: this server.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for part in [HTML, CSS, JS] {
            for external in ["http:", "https:", "//cdn", "@import", "url(", "innerHTML", "eval("] {
                assert!(!part.contains(external), "{external}");
            }
        }
        // A strict policy refuses styles and programs within the page.
        for inline in [" style=", "<style", " onclick=", "<script>"] {
            assert!(!HTML.contains(inline), "{inline}");
        }
        assert!(!POLICY.contains("unsafe"));
    }

    #[test]
    fn names_of_the_program_are_in_the_page() {
        let names = JS.split("at(\"").skip(1).map(|rest| rest.split('"').next().unwrap_or(""));
        for name in names {
            assert!(HTML.contains(&format!("id=\"{name}\"")), "{name}");
        }
    }
}
