/** Cron in words. Pure. */
import { toString } from 'cronstrue'

/** The expression itself if it is none that can be said. */
export function inWords(expression: string): string {
  try {
    const text = toString(expression, { use24HourTimeFormat: true })
    const said = text.charAt(0).toLowerCase() + text.slice(1)
    return /^at \d\d:\d\d$/.test(said) ? `every day ${said}` : said
  } catch {
    return expression
  }
}
