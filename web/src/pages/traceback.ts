/** What a traceback says. Pure. */

/** Its last line, and the line of the DAG file at which it happened: the innermost one, or that of a SyntaxError. */
export function cause(trace: string, file: string): { line: number | null; text: string } {
  const lines = trace.split('\n').filter((one) => one.trim())
  let line: number | null = null
  for (const one of lines) {
    const found = /^\s*File "(.+)", line (\d+)/.exec(one)
    if (found && (found[1] === file || found[1]!.endsWith(`/${file}`))) line = Number(found[2])
  }
  return { line, text: lines.at(-1)?.trim() ?? '' }
}

/** The token by which the API names a DAG file. */
export function fileToken(file: string): string {
  return btoa(String.fromCharCode(...new TextEncoder().encode(file))).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '')
}
