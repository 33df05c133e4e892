//! Plain-text tables, and sentences beside them.

/// Most columns of what is printed.
const COLUMNS: usize = 80;

/// Breaks lines at spaces, so that they have at most 80 columns where words permit. Begins further
/// lines as far to the right as the text of the first. A number stays with the word behind it, which
/// may be its unit.
pub(crate) fn wrapped(text: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines.map(|line| broken(line, line.len() - line.trim_start_matches(' ').len())).collect()
}

/// Like [`wrapped`], with further lines at a column: that of the last cell of a row.
pub(crate) fn wrapped_at(column: usize, text: &str) -> String {
    text.split_inclusive('\n').map(|line| broken(line, column)).collect()
}

fn broken(line: &str, indent: usize) -> String {
    let mut all = String::with_capacity(line.len() + 8);
    let mut column = 0;
    let mut words = line.split_inclusive(' ');
    while let Some(word) = words.next() {
        let mut word = word.to_owned();
        while is_number(&word)
            && let Some(next) = words.next()
        {
            word.push_str(next);
        }
        let len = word.trim_end().chars().count();
        if column > indent && column + len > COLUMNS {
            all.truncate(all.trim_end_matches(' ').len());
            all.push('\n');
            all.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        }
        all.push_str(&word);
        column += word.chars().count();
    }
    all
}

/// True for the last word of a text if it is a number, with a space behind it.
fn is_number(text: &str) -> bool {
    let Some(text) = text.strip_suffix(' ') else { return false };
    let word = text.rsplit(' ').next().unwrap_or("");
    word.as_bytes().first().is_some_and(u8::is_ascii_digit) && word.chars().all(is_of_number)
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

/// Formats rows of cells under a heading, with columns as wide as their widest cell. The first
/// column and those whose heading begins with `<` are left-aligned.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut names = Vec::new();
    let mut columns = Vec::new();
    for (number, name) in heading.iter().enumerate() {
        let is_left = number == 0 || name.starts_with('<');
        let name = name.trim_start_matches('<').to_owned();
        let mut width = name.chars().count();
        for row in rows {
            if let Some(cell) = row.get(number) {
                width = width.max(cell.chars().count());
            }
        }
        names.push(name);
        columns.push((width, is_left));
    }
    let mut text = String::new();
    for row in [&names].into_iter().chain(rows) {
        let mut line = String::new();
        for (cell, &(width, is_left)) in row.iter().zip(&columns) {
            line.push_str(&match is_left {
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
            (
                format!("{} 0.58 GB/s; 2 threads\n", "y".repeat(74)),
                format!("{}\n0.58 GB/s; 2 threads\n", "y".repeat(74)),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(wrapped(&text), expected);
        }
        let row = format!("check  {}  {word} {word} {word}\n", "ok");
        let expected = format!("check  ok  {word} {word}\n           {word}\n");
        assert_eq!(wrapped_at(11, &row), expected);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["é", "1", "x"], ["long", "22222", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let expected = "what      n  how\né         1  x\nlong  22222\n";
        assert_eq!(table(&["what", "n", "<how"], &rows), expected);
    }
}
