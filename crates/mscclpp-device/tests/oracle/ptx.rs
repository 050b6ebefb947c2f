// SPDX-License-Identifier: MIT
//! Inline PTX as C++: each instruction of an `asm` statement becomes a call of the function of its
//! name in host.hpp, with its operands in their order.
//!
//! `asm volatile("add.u32 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b))` becomes
//! `do { ptx::add_u32((sum), (a), (b)); } while (0)`. Braces around instructions are a block, braces
//! around operands and brackets around addresses fall away, `.reg` declares a variable.

const KEYWORD: &str = "asm volatile(";

/// The text with all its statements replaced, and how many there were.
pub(crate) fn without(text: &str) -> Result<(String, usize), String> {
    let (mut out, mut rest, mut count) = (String::new(), text, 0);
    while let Some(at) = rest.find(KEYWORD) {
        out.push_str(&rest[..at]);
        let inside = &rest[at + KEYWORD.len()..];
        let parts = top_level(inside, ':')?;
        out.push_str(&statement(&parts.pieces)?);
        let end = inside[parts.length..].strip_prefix(')');
        rest = end.ok_or_else(|| format!("no end of {:?}", parts.pieces[0]))?;
        count += 1;
    }
    out.push_str(rest);
    Ok((out, count))
}

/// What stands before the bracket that closes, in pieces.
struct Parts<'a> {
    pieces: Vec<&'a str>,
    length: usize,
}

/// Splits at `separator` outside of strings and brackets, up to the closing bracket or the end.
fn top_level(text: &str, separator: char) -> Result<Parts<'_>, String> {
    let (mut pieces, mut start, mut depth) = (Vec::new(), 0, 0);
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' => depth += 1,
            ')' if depth == 0 => {
                pieces.push(&text[start..at]);
                return Ok(Parts { pieces, length: at });
            }
            ')' => depth -= 1,
            _ if c == separator && depth == 0 => {
                pieces.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    if depth != 0 || quoted {
        return Err(format!("no end of {:?}", &text[..text.len().min(80)]));
    }
    pieces.push(&text[start..]);
    Ok(Parts {
        pieces,
        length: text.len(),
    })
}

/// Template, results, operands, clobbers.
fn statement(parts: &[&str]) -> Result<String, String> {
    let template: String = strings(parts.first().copied().unwrap_or_default());
    let mut operands = Vec::new();
    for list in parts.iter().skip(1).take(2) {
        for operand in top_level(list, ',')?.pieces {
            let operand = operand.trim();
            if operand.is_empty() {
                continue;
            }
            let open = operand.find('(');
            let expression = open.ok_or_else(|| format!("operand {operand:?}"))?;
            operands.push(operand[expression..].to_owned());
        }
    }
    let template = template.trim();
    let template = template
        .strip_prefix('{')
        .and_then(|inside| inside.strip_suffix('}'))
        .unwrap_or(template);
    let mut out = String::from("do { ");
    for instruction in template.split(';').map(str::trim) {
        if !instruction.is_empty() {
            out.push_str(&call(instruction, &operands)?);
        }
    }
    Ok(out + "} while (0)")
}

/// The contents of adjacent string literals.
fn strings(text: &str) -> String {
    let literals = text.split('"').skip(1).step_by(2);
    let text: String = literals.collect();
    text.replace("\\n", " ").replace("\\t", " ")
}

fn call(instruction: &str, operands: &[String]) -> Result<String, String> {
    let (name, rest) = instruction.split_once(' ').unwrap_or((instruction, ""));
    if name == ".reg" {
        let (kind, variable) = rest
            .trim()
            .split_once(' ')
            .ok_or_else(|| format!("declaration {instruction:?}"))?;
        let bits = kind.trim_start_matches(|c: char| !c.is_ascii_digit());
        return Ok(format!("uint{bits}_t {} = 0; ", variable.trim()));
    }
    let mut arguments = Vec::new();
    for argument in rest.split(',') {
        let argument = argument.trim_matches(|c: char| c.is_whitespace() || "{}[]".contains(c));
        arguments.push(match argument.strip_prefix('%') {
            _ if argument.is_empty() => continue,
            // A register of the machine.
            Some(special) if special.starts_with('%') => format!("ptx::{}", &special[1..]),
            Some(number) => {
                let operand = number.parse().ok().and_then(|at: usize| operands.get(at));
                let operand = operand.ok_or_else(|| format!("%{number} in {instruction:?}"))?;
                operand.clone()
            }
            None => argument.to_owned(),
        });
    }
    let name = name.replace(['.', ':'], "_");
    Ok(format!("ptx::{name}({}); ", arguments.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::without;

    fn of(text: &str) -> String {
        without(text).unwrap().0
    }

    #[test]
    fn an_instruction_becomes_a_call_with_results_before_operands() {
        assert_eq!(
            of(
                r#"if (x) asm volatile("ld.a.b8 %0, [%1];" : "=h"(r) : "l"(p->at(1, 2))); else y();"#
            ),
            "if (x) do { ptx::ld_a_b8((r), (p->at(1, 2))); } while (0); else y();"
        );
        assert_eq!(
            of(r#"asm volatile("st.L1::x.v2 [%0], {%1, %2};" : : "l"(p), "l"(v[0]), "l"(v[1]));"#),
            "do { ptx::st_L1__x_v2((p), (v[0]), (v[1])); } while (0);"
        );
        assert_eq!(
            of(r#"asm volatile("mov.u64 %0, %%clock;" : "=l"(t)::"memory");"#),
            "do { ptx::mov_u64((t), ptx::clock); } while (0);"
        );
        assert_eq!(
            of(r#"asm volatile("fence;");"#),
            "do { ptx::fence(); } while (0);"
        );
    }

    #[test]
    fn a_block_declares_its_variables() {
        let text = r#"asm volatile("{\n\t" ".reg .b8 lo;\n\t" "mov.b16 {lo, %0}, 0x12;\n\t" "}" : "=r"(a));"#;
        assert_eq!(
            of(text),
            "do { uint8_t lo = 0; ptx::mov_b16(lo, (a), 0x12); } while (0);"
        );
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        assert!(without(r#"asm volatile("a %3;" : "=r"(x));"#).is_err());
        assert!(without(r#"asm volatile("a %0;" : "=r"(x)"#).is_err());
        assert_eq!(without("int x;").unwrap(), ("int x;".to_owned(), 0));
    }
}
