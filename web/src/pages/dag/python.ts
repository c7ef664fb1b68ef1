/** Python source as colored pieces: comments, strings, keywords, numbers, decorators. Line by line, with open strings carried on. Pure. */
export interface Piece {
  text: string
  kind: '' | 'comment' | 'string' | 'keyword' | 'number' | 'decorator'
}

const TOKEN = /(#.*$)|((?:[rRbBfFuU]{0,2})(?:"""|'''))|((?:[rRbBfFuU]{0,2})(?:"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?))|(^\s*@[\w.]+)|(\b(?:False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|case|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b)|(\b\d[\w.]*)/g

/** The pieces of each line. */
export function highlighted(source: string): Piece[][] {
  let open = ''
  return source.split('\n').map((line) => {
    const found: Piece[] = []
    let from = 0
    const push = (text: string, kind: Piece['kind']) => {
      if (text) found.push({ text, kind })
    }
    while (from < line.length) {
      if (open) {
        const end = line.indexOf(open, from)
        const until = end < 0 ? line.length : end + 3
        push(line.slice(from, until), 'string')
        from = until
        if (end >= 0) open = ''
        continue
      }
      TOKEN.lastIndex = from
      const match = TOKEN.exec(line)
      if (!match) break
      push(line.slice(from, match.index), '')
      from = match.index + match[0].length
      if (match[2]) {
        open = match[2].slice(-3)
        push(match[0], 'string')
      } else push(match[0], match[1] ? 'comment' : match[3] ? 'string' : match[4] ? 'decorator' : match[5] ? 'keyword' : 'number')
    }
    push(line.slice(from), '')
    return found
  })
}
