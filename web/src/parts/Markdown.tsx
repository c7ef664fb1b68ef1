/** Markdown of a DAG file. HTML in it is shown as text, and what Markdown makes is sanitized. */
import DOMPurify from 'dompurify'
import { Marked } from 'marked'
import { useMemo } from 'preact/hooks'
import { cleandoc } from './cleandoc'

const marked = new Marked({
  gfm: true,
  async: false,
  renderer: {
    html: ({ text }) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;'),
    // The content policy loads no picture of another host.
    image({ href, text }) {
      return `<a href="${encodeURI(href)}">${text.replace(/[<>&"]/g, '') || 'image'}</a>`
    },
  },
})
const purify = DOMPurify()
purify.addHook('afterSanitizeAttributes', (element) => {
  if (element.tagName !== 'A') return
  element.setAttribute('target', '_blank')
  element.setAttribute('rel', 'noopener noreferrer')
})
const LIMITS = {
  ALLOWED_TAGS: ['a', 'b', 'blockquote', 'br', 'code', 'del', 'details', 'em', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'i', 'kbd', 'li', 'ol', 'p', 'pre', 's', 'strong', 'sub', 'summary', 'sup', 'table', 'tbody', 'td', 'th', 'thead', 'tr', 'ul'],
  ALLOWED_ATTR: ['href', 'align', 'start', 'colspan', 'rowspan', 'open'],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#|\/(?!\/))/i,
}

/** What is longer is shown as it is: with hostile Markdown, the time of a parser grows with the square of its length. */
const LONGEST = 100_000

/** The HTML of a text; null for one that is too long, or nested too deeply. */
function html(text: string): string | null {
  if (text.length > LONGEST) return null
  try {
    return purify.sanitize(marked.parse(cleandoc(text)) as string, LIMITS)
  } catch {
    return null
  }
}

export default function Markdown({ text }: { text: string }) {
  const made = useMemo(() => html(text), [text])
  if (made === null) return <pre class="code wrap">{text}</pre>
  return <div class="markdown" dangerouslySetInnerHTML={{ __html: made }} />
}
