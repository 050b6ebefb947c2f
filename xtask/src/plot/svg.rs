// SPDX-License-Identifier: MIT
//! What plotters leaves out of its SVG.

/// A drawing that says what it shows to who does not see it.
pub(super) fn described(svg: &str, title: &str, description: &str) -> String {
    let words = format!(
        "<title>{}</title>\n<desc>{}</desc>\n",
        escaped(title),
        escaped(description)
    );
    match svg.split_once(">\n") {
        Some((head, rest)) => {
            let head = head.replacen("<svg ", "<svg role=\"img\" ", 1);
            format!("{head}>\n{words}{rest}")
        }
        None => svg.to_owned(),
    }
}

/// Text in which nothing is taken for markup.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
