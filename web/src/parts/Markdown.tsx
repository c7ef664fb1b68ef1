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

export default function Markdown({ text }: { text: string }) {
  const html = useMemo(() => purify.sanitize(marked.parse(cleandoc(text)) as string, LIMITS), [text])
  return <div class="markdown" dangerouslySetInnerHTML={{ __html: html }} />
}
