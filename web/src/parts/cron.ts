/** Cron in words. Pure. */
import { toString } from 'cronstrue'

const FIELD = /^(?:[\d*/,#?LW-]|MON|TUE|WED|THU|FRI|SAT|SUN|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)+$/i

/** A schedule in which each expression of cron is said in words: also with a zone, or beside others and assets. */
export const inWords = (summary: string): string => summary.split(', ').map(said).join(', ')

function said(part: string): string {
  const words = part.split(' ')
  const cron = words.slice(0, 5)
  return cron.length === 5 && cron.every((one) => FIELD.test(one)) ? [ofCron(cron.join(' ')), ...words.slice(5)].join(' ') : part
}

/** The expression itself if it is none that can be said. */
function ofCron(expression: string): string {
  try {
    const text = toString(expression, { use24HourTimeFormat: true })
    const words = text.charAt(0).toLowerCase() + text.slice(1)
    return /^at \d\d:\d\d$/.test(words) ? `every day ${words}` : words
  } catch {
    return expression
  }
}
