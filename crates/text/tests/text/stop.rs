//! Stop strings, across all boundaries between pieces.

use proptest::prelude::*;
use sws_text::StopStrings;

/// The text shown when it arrives in these pieces, and true if it was stopped.
fn render<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, bool) {
    let mut stop = StopStrings::new(stops.iter().map(|s| s.to_string()));
    let mut out = String::new();
    for piece in pieces {
        if stop.push(piece, &mut out) {
            return (out, true);
        }
    }
    stop.finish(&mut out);
    (out, false)
}

#[test]
fn text_ends_before_the_first_complete_stop_string() {
    let cases: [(&[&str], &str, &str, bool); 12] = [
        (&[], "abc", "abc", false),
        (&[""], "abc", "abc", false),
        (&["x"], "abc", "abc", false),
        (&["b"], "abc", "a", true),
        (&["abc"], "abc", "", true),
        (&["bcd"], "abc", "abc", false),
        (&["aab"], "aaaab!", "aa", true),
        (&["abab"], "abaabab", "aba", true),
        (&["abc", "b"], "abc", "a", true),
        (&["bc", "abc"], "xabcx", "x", true),
        (&["\n\n"], "a\nb\n\nc", "a\nb", true),
        (&["é🎉"], "caf\u{e9}🎈é🎉", "café🎈", true),
    ];
    for (stops, text, expected, stopped) in cases {
        let whole = render(stops, [text]);
        assert_eq!(whole, (expected.to_owned(), stopped), "{stops:?} in {text:?}");
        let by_char = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
        assert_eq!(render(stops, by_char), whole, "{stops:?} in {text:?}, char by char");
    }
}

#[test]
fn only_prefixes_of_stop_strings_are_held_back() {
    let mut stop = StopStrings::new(["</end>".to_owned()]);
    let steps = [("one <", "one "), ("/e", ""), ("m> two", "</em> two"), ("</en", "")];
    for (piece, expected) in steps {
        let mut out = String::new();
        assert!(!stop.push(piece, &mut out));
        assert_eq!(out, expected, "after {piece:?}");
    }
    let mut out = String::new();
    stop.finish(&mut out);
    assert_eq!(out, "</en");
}

proptest! {
    #[test]
    fn result_does_not_depend_on_how_text_is_split(
        pieces in prop::collection::vec("[ab\u{e9}]{0,4}", 0..12),
        stops in prop::collection::vec("[ab\u{e9}]{1,4}", 0..4),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let text = pieces.concat();
        let streamed = render(&stops, pieces.iter().map(String::as_str));
        prop_assert_eq!(&streamed, &render(&stops, [text.as_str()]));
        // The definition: the shortest prefix of the text that ends with a stop string.
        let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
        let first = ends.map(|end| &text[..end]).find_map(|t| {
            stops.iter().filter(|s| t.ends_with(**s)).map(|s| t.len() - s.len()).min()
        });
        let expected = (text[..first.unwrap_or(text.len())].to_owned(), first.is_some());
        prop_assert_eq!(streamed, expected);
    }
}
