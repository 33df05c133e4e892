//! Stop strings.

/// Watches text for the strings that end it.
///
/// Text that could still become a stop string is held back; the rest is passed on at once. The
/// result does not depend on how the text is split into pieces. It ends where the first stop string
/// is complete; if several are complete there, the longest one is cut off.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopStrings {
    /// Watches for these strings. Empty ones would stop everything and are ignored.
    pub fn new(strings: impl IntoIterator<Item = String>) -> StopStrings {
        let strings = strings.into_iter().filter(|s| !s.is_empty()).collect();
        StopStrings { strings, ..StopStrings::default() }
    }

    /// Takes more text, and appends to `out` the part that cannot belong to a stop string. Returns
    /// true once a stop string has been found; no later text is passed on.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.stopped {
            return true;
        }
        for c in text.chars() {
            self.held.push(c);
            let complete = self.strings.iter().filter(|s| self.held.ends_with(s.as_str()));
            if let Some(longest) = complete.map(String::len).max() {
                out.push_str(&self.held[..self.held.len() - longest]);
                self.held.clear();
                self.stopped = true;
                return true;
            }
            let free = self.held.len() - self.open();
            out.push_str(&self.held[..free]);
            self.held.drain(..free);
        }
        false
    }

    /// Ends the text, and appends the text that was held back.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Length of the longest suffix of the held text that is a prefix of a stop string.
    fn open(&self) -> usize {
        for (at, _) in self.held.char_indices() {
            let end = &self.held[at..];
            if self.strings.iter().any(|string| string.starts_with(end)) {
                return end.len();
            }
        }
        0
    }
}
