//! Plain-text tables, and sentences beside them.

/// Most columns of what is printed.
const COLUMNS: usize = 80;

/// Breaks lines at spaces, so that they have at most 80 columns where words permit. Begins further
/// lines as far to the right as the text of the first.
pub(crate) fn wrapped(text: &str) -> String {
    let mut all = String::with_capacity(text.len() + 8);
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let mut column = 0;
        for word in line.split_inclusive(' ') {
            let len = word.trim_end().chars().count();
            if column > indent && column + len > COLUMNS {
                all.truncate(all.trim_end_matches(' ').len());
                all.push('\n');
                all.extend(std::iter::repeat_n(' ', indent));
                column = indent;
            }
            all.push_str(word);
            column += word.chars().count();
        }
    }
    all
}

/// Formats rows of cells under a heading, with columns as wide as their widest cell. The first
/// column and those whose heading begins with `<` are left-aligned.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let left: Vec<bool> =
        heading.iter().enumerate().map(|(i, h)| i == 0 || h.starts_with('<')).collect();
    let heading: Vec<String> =
        heading.iter().map(|h| h.trim_start_matches('<').to_owned()).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&heading]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let mut text = String::new();
    for row in [&heading].into_iter().chain(rows) {
        let mut line = String::new();
        for ((cell, &width), &left) in row.iter().zip(&widths).zip(&left) {
            line.push_str(&match left {
                true => format!("{cell:<width$}  "),
                false => format!("{cell:>width$}  "),
            });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_at_spaces() {
        let word = "x".repeat(30);
        let cases = [
            ("short\nlines\n".to_owned(), "short\nlines\n".to_owned()),
            (format!("{word} {word} {word}\n"), format!("{word} {word}\n{word}\n")),
            (format!("  {word} {word} {word}\n"), format!("  {word} {word}\n  {word}\n")),
            ("y".repeat(100), "y".repeat(100)),
            (format!("{} z\n", "y".repeat(80)), format!("{}\nz\n", "y".repeat(80))),
        ];
        for (text, expected) in cases {
            assert_eq!(wrapped(&text), expected);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["é", "1", "x"], ["long", "22222", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let expected = "what      n  how\né         1  x\nlong  22222\n";
        assert_eq!(table(&["what", "n", "<how"], &rows), expected);
    }
}
