/** A docstring without the indentation of its code, as inspect.cleandoc of Python has it. */
export function cleandoc(text: string): string {
  const lines = text.replaceAll('\t', '        ').replace(/\s+$/, '').split(/\r?\n/)
  const indents = lines.slice(1).filter((line) => line.trim()).map((line) => line.length - line.trimStart().length)
  const indent = indents.length ? Math.min(...indents) : 0
  return [lines[0]!.trimStart(), ...lines.slice(1).map((line) => line.slice(indent))].join('\n').replace(/^\n+/, '')
}
